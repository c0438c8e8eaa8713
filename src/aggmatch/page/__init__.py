"""Local pages over HTTP: label, train and review images of your own (`label`), and serve a trained model (`serve`)."""
