"""What a training step costs on this machine, against what it costs without a graph, in the loop, and at best."""
