"""Images of your own: files, folders, tables of labels and archives, read safely and once."""
