cdef extern from "crc32.h" nogil:
    void reput_crc32_prepare()
    unsigned int reput_crc32(unsigned int value, const unsigned char *data, size_t size)
