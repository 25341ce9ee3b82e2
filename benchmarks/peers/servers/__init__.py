"""The measured servers, one file each; they run on loopback with a directory of their own."""
