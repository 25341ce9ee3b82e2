cdef extern from "crc32.h" nogil:
    unsigned int reput_crc32(unsigned int value, const unsigned char *data, size_t size)
