module reput/interop

go 1.24
