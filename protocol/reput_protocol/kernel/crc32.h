/* CRC-32 as zlib computes it (reflected, polynomial 0xEDB88320), with carry-less multiplication where the processor
 * has it. Folding as in "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel, 2009. */

#ifndef REPUT_CRC32_H
#define REPUT_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t reput_crc32_table[8][256];

static void reput_crc32_make_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t sum = byte;
        for (int bit = 0; bit < 8; bit++)
            sum = sum & 1 ? sum >> 1 ^ 0xEDB88320u : sum >> 1;
        reput_crc32_table[0][byte] = sum;
    }
    for (int lane = 1; lane < 8; lane++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t before = reput_crc32_table[lane - 1][byte];
            reput_crc32_table[lane][byte] = before >> 8 ^ reput_crc32_table[0][before & 0xFF];
        }
}

/* Eight bytes a step; `sum` is inverted already. */
static uint32_t reput_crc32_by_table(uint32_t sum, const unsigned char *data, size_t size)
{
    while (size >= 8) {
        uint32_t low = sum ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
                              (uint32_t)data[3] << 24);
        sum = reput_crc32_table[7][low & 0xFF] ^ reput_crc32_table[6][low >> 8 & 0xFF] ^
              reput_crc32_table[5][low >> 16 & 0xFF] ^ reput_crc32_table[4][low >> 24] ^
              reput_crc32_table[3][data[4]] ^ reput_crc32_table[2][data[5]] ^ reput_crc32_table[1][data[6]] ^
              reput_crc32_table[0][data[7]];
        data += 8;
        size -= 8;
    }
    while (size--)
        sum = sum >> 8 ^ reput_crc32_table[0][(sum ^ *data++) & 0xFF];
    return sum;
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define REPUT_CRC32_FOLDS 1
#include <smmintrin.h>
#include <wmmintrin.h>

#define REPUT_FOLD(sum, by, next)                                                                     \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(sum, by, 0x00), _mm_clmulepi64_si128(sum, by, 0x11)), next)

/* `size` is a multiple of 16, and at least 64. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t reput_crc32_by_folding(
    uint32_t sum, const unsigned char *data, size_t size)
{
    const __m128i by_64 = _mm_set_epi64x(0x1C6E41596, 0x154442BD4);
    const __m128i by_16 = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    const __m128i by_8 = _mm_set_epi64x(0, 0x163CD6124);
    const __m128i barrett = _mm_set_epi64x(0x1F7011641, 0x1DB710641);
    const __m128i low_words = _mm_set_epi32(0, -1, 0, -1);
    const __m128i *from = (const __m128i *)data;
    __m128i lanes[4], folded, part;

    for (int lane = 0; lane < 4; lane++)
        lanes[lane] = _mm_loadu_si128(from++);
    lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)sum));
    for (size -= 64; size >= 64; size -= 64)
        for (int lane = 0; lane < 4; lane++)
            lanes[lane] = REPUT_FOLD(lanes[lane], by_64, _mm_loadu_si128(from++));
    folded = lanes[0];
    for (int lane = 1; lane < 4; lane++)
        folded = REPUT_FOLD(folded, by_16, lanes[lane]);
    for (; size >= 16; size -= 16)
        folded = REPUT_FOLD(folded, by_16, _mm_loadu_si128(from++));
    /* 128 bits to 64, to 32. */
    folded = _mm_xor_si128(_mm_srli_si128(folded, 8), _mm_clmulepi64_si128(folded, by_16, 0x10));
    part = _mm_srli_si128(folded, 4);
    folded = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(folded, low_words), by_8, 0x00), part);
    part = _mm_clmulepi64_si128(_mm_and_si128(folded, low_words), barrett, 0x10);
    part = _mm_clmulepi64_si128(_mm_and_si128(part, low_words), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(folded, part), 1);
}
#endif

static int reput_crc32_folds = 0;

static int reput_crc32_is_ready = 0;

/* Every module that includes this has a table of its own. Two threads that make it at once write the same. */
static void reput_crc32_prepare(void)
{
    reput_crc32_make_table();
#ifdef REPUT_CRC32_FOLDS
    __builtin_cpu_init();
    reput_crc32_folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
    reput_crc32_is_ready = 1;
}

static uint32_t reput_crc32(uint32_t sum, const unsigned char *data, size_t size)
{
    if (!reput_crc32_is_ready)
        reput_crc32_prepare();
    sum = ~sum;
#ifdef REPUT_CRC32_FOLDS
    if (size >= 64 && reput_crc32_folds) {
        size_t whole = size & ~(size_t)15;
        sum = reput_crc32_by_folding(sum, data, whole);
        data += whole;
        size -= whole;
    }
#endif
    return ~reput_crc32_by_table(sum, data, size);
}

#endif
