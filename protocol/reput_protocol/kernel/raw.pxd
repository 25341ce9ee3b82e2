# The compiled form of raw.py: inlined into each module that uses it.

from cpython.array cimport array, clone
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memchr, memcmp, memcpy

from reput_protocol.kernel.crc32 cimport reput_crc32


cdef inline int i16(const unsigned char[::1] data, Py_ssize_t at) noexcept:
    return <short>(<int>data[at] << 8 | data[at + 1])


cdef inline unsigned int u32(const unsigned char[::1] data, Py_ssize_t at) noexcept:
    cdef unsigned int high = <unsigned int>data[at] << 24 | <unsigned int>data[at + 1] << 16
    return high | <unsigned int>data[at + 2] << 8 | data[at + 3]


cdef inline int i32(const unsigned char[::1] data, Py_ssize_t at) noexcept:
    return <int>u32(data, at)


cdef inline long long i64(const unsigned char[::1] data, Py_ssize_t at) noexcept:
    return <long long>(<unsigned long long>u32(data, at) << 32 | u32(data, at + 4))


cdef inline void put_i16(unsigned char[::1] data, Py_ssize_t at, long long value) noexcept:
    data[at] = <unsigned char>(value >> 8 & 0xFF)
    data[at + 1] = <unsigned char>(value & 0xFF)


cdef inline void put_i32(unsigned char[::1] data, Py_ssize_t at, long long value) noexcept:
    put_i16(data, at, value >> 16)
    put_i16(data, at + 2, value)


cdef inline void put_i64(unsigned char[::1] data, Py_ssize_t at, long long value) noexcept:
    put_i32(data, at, value >> 32)
    put_i32(data, at + 4, value)


cdef inline void put_hex(unsigned char[::1] data, Py_ssize_t at, unsigned int value) noexcept:
    cdef int shift
    cdef unsigned int digit
    for shift in range(4):
        digit = value >> (12 - 4 * shift) & 0xF
        data[at + shift] = <unsigned char>(digit + (0x30 if digit < 10 else 0x37))


cdef inline Py_ssize_t copy(
    const unsigned char[::1] source, Py_ssize_t start, Py_ssize_t size, unsigned char[::1] target, Py_ssize_t at
) noexcept:
    if size:
        memcpy(&target[at], &source[start], size)
    return at + size


cdef inline Py_ssize_t put(
    object source, unsigned char[::1] target, Py_ssize_t at, Py_ssize_t stop
) except -1:
    cdef Py_buffer view
    PyObject_GetBuffer(source, &view, PyBUF_SIMPLE)
    cdef Py_ssize_t size = view.len
    if 0 < size <= stop - at:
        memcpy(&target[at], view.buf, size)
    PyBuffer_Release(&view)
    if size > stop - at:
        raise BufferError(f"{size} bytes are copied to where there is room for {stop - at}")
    return at + size


cdef inline bytes copied(const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size):
    if not size:
        return b""
    return PyBytes_FromStringAndSize(<char *>&data[start], size)


cdef inline bint has(const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t stop, bytes text) noexcept:
    cdef Py_ssize_t index
    if stop - at < len(text):
        return False
    for index in range(len(text)):
        if data[at + index] != text[index]:
            return False
    return True


cdef inline bint same(
    const unsigned char[::1] data, Py_ssize_t one, Py_ssize_t other, Py_ssize_t size
) noexcept:
    cdef Py_ssize_t index
    for index in range(size):
        if data[one + index] != data[other + index]:
            return False
    return True


cdef inline bint equal(
    const unsigned char[::1] data, Py_ssize_t at, const unsigned char[::1] other, Py_ssize_t start, Py_ssize_t size
) noexcept:
    return not size or memcmp(&data[at], &other[start], size) == 0


cdef inline Py_ssize_t find(
    const unsigned char[::1] data, unsigned char byte, Py_ssize_t at, Py_ssize_t stop
) noexcept:
    cdef const void *found
    if at >= stop:
        return at
    found = memchr(&data[at], byte, stop - at)
    return stop if found is NULL else at + (<const unsigned char *>found - &data[at])


cdef inline object searchable(object buffer):
    return buffer


cdef inline bint is_ascii(const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t stop) noexcept:
    cdef Py_ssize_t at = start
    cdef unsigned long long eight
    while stop - at >= 8:
        memcpy(&eight, &data[at], 8)
        if eight & 0x8080808080808080ULL:
            return False
        at += 8
    while at < stop:
        if data[at] > 0x7F:
            return False
        at += 1
    return True


cdef inline bint ends_with_checksum(
    const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t stop
) noexcept:
    cdef Py_ssize_t at = stop - 20
    return (
        at >= start
        and data[at] == 0x5F
        and data[stop - 1] == 2
        and data[at + 8] == 1
        and has(data, at, stop, b"__CRC32#")
        and (at == start or data[at - 1] == 2)
    )


cdef inline unsigned int crc(
    const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t stop, unsigned int value
) noexcept:
    if start == stop:
        return value
    return reput_crc32(value, &data[start], stop - start)


cdef inline int crc31(const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t stop) noexcept:
    return <int>(crc(data, start, stop, 0) & 0x7FFF_FFFF)


cdef inline object zeros(array template, Py_ssize_t count):
    return clone(template, count, True)


cdef inline object room(array template, Py_ssize_t count):
    return clone(template, count, False)


cdef inline bytearray bytes_room(Py_ssize_t size):
    return PyByteArray_FromStringAndSize(NULL, size)
