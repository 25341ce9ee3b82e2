"""The servers that are measured, one file each: started on loopback with a directory of their own."""
