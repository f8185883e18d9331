// Strict, bounds-checked scanning of JSON text. Every function takes the place to read at
// by reference and the end of the text, never reads at or past the end, and returns false on
// anything that is not plain, valid JSON; the caller then leaves the text to another parser.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if (defined(__SSE2__) || defined(_M_X64)) && !defined(TRACEKIT_SCALAR)
#include <emmintrin.h>
#define TRACEKIT_SSE2 1
#endif
#if defined(_MSC_VER)
#include <intrin.h>
#endif

namespace tracekit {

// A string without its quotes. An escaped one still holds its backslashes.
struct Text {
    const char* begin = nullptr;
    const char* end = nullptr;
    bool escaped = false;

    std::size_t size() const { return static_cast<std::size_t>(end - begin); }
    bool equals(const char* text, std::size_t length) const {
        return size() == length && std::memcmp(begin, text, length) == 0;
    }
};

inline bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

inline bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

inline void skip_blank(const char*& p, const char* end) {
    if (p < end && static_cast<unsigned char>(*p) > ' ') return;  // the usual case
    while (p < end && is_blank(*p)) ++p;
}

inline bool skip_char(const char*& p, const char* end, char wanted) {
    if (p >= end || *p != wanted) return false;
    ++p;
    return true;
}

inline unsigned lowest_bit(unsigned mask) {
#if defined(_MSC_VER)
    unsigned long index;
    _BitScanForward(&index, mask);
    return index;
#else
    return static_cast<unsigned>(__builtin_ctz(mask));
#endif
}

// Moves to the first quote, backslash or control byte; notes bytes above 127 on the way.
inline bool find_special(const char*& p, const char* end, bool& wide) {
#if defined(TRACEKIT_SSE2)
    const __m128i quote = _mm_set1_epi8('"');
    const __m128i backslash = _mm_set1_epi8('\\');
    const __m128i last_control = _mm_set1_epi8(0x1f);
    while (end - p >= 16) {
        const __m128i chunk = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        const __m128i special =
            _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(chunk, quote), _mm_cmpeq_epi8(chunk, backslash)),
                         _mm_cmpeq_epi8(_mm_min_epu8(chunk, last_control), chunk));
        const unsigned found = static_cast<unsigned>(_mm_movemask_epi8(special));
        const unsigned high = static_cast<unsigned>(_mm_movemask_epi8(chunk));
        if (found != 0) {
            const unsigned place = lowest_bit(found);
            wide |= (high & ((1u << place) - 1u)) != 0;
            p += place;
            return true;
        }
        wide |= high != 0;
        p += 16;
    }
#endif
    for (; p < end; ++p) {
        const unsigned char c = static_cast<unsigned char>(*p);
        if (c == '"' || c == '\\' || c < 0x20) return true;
        wide |= c >= 0x80;
    }
    return false;
}

inline bool valid_utf8(const char* begin, const char* end) {
    const unsigned char* p = reinterpret_cast<const unsigned char*>(begin);
    const unsigned char* stop = reinterpret_cast<const unsigned char*>(end);
    while (p < stop) {
        const unsigned char c = *p;
        int more;
        unsigned low = 0x80, high = 0xbf;  // bounds of the second byte
        if (c < 0x80) {
            ++p;
            continue;
        } else if (c >= 0xc2 && c <= 0xdf) {
            more = 1;
        } else if (c >= 0xe0 && c <= 0xef) {
            more = 2;
            if (c == 0xe0) low = 0xa0;
            if (c == 0xed) high = 0x9f;  // surrogates
        } else if (c >= 0xf0 && c <= 0xf4) {
            more = 3;
            if (c == 0xf0) low = 0x90;
            if (c == 0xf4) high = 0x8f;
        } else {
            return false;
        }
        if (stop - p <= more) return false;
        if (p[1] < low || p[1] > high) return false;
        for (int i = 2; i <= more; ++i) {
            if ((p[i] & 0xc0) != 0x80) return false;
        }
        p += more + 1;
    }
    return true;
}

inline int hex_value(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

// Four hex digits; -1 when they are not there.
inline int hex_quad(const char* p, const char* end) {
    if (end - p < 4) return -1;
    int code = 0;
    for (int i = 0; i < 4; ++i) {
        const int digit = hex_value(p[i]);
        if (digit < 0) return -1;
        code = code << 4 | digit;
    }
    return code;
}

// At a backslash: moves past a valid escape. Surrogates are left to the other parser.
inline bool skip_escape(const char*& p, const char* end) {
    if (end - p < 2) return false;
    switch (p[1]) {
        case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
            p += 2;
            return true;
        case 'u': {
            const int code = hex_quad(p + 2, end);
            if (code < 0 || (code >= 0xd800 && code <= 0xdfff)) return false;
            p += 6;
            return true;
        }
        default:
            return false;
    }
}

// A string, from its opening quote on.
inline bool scan_string(const char*& p, const char* end, Text& out) {
    if (!skip_char(p, end, '"')) return false;
    out.begin = p;
    out.escaped = false;
    bool wide = false;
    for (;;) {
        if (!find_special(p, end, wide)) return false;
        if (*p == '"') break;
        if (*p != '\\' || !skip_escape(p, end)) return false;
        out.escaped = true;
    }
    out.end = p++;
    return !wide || valid_utf8(out.begin, out.end);
}

// A number by JSON's grammar. `plain` tells one without exponent and with few digits.
inline bool skip_number(const char*& p, const char* end, bool& plain) {
    const char* begin = p;
    if (p < end && *p == '-') ++p;
    if (p >= end || !is_digit(*p)) return false;
    if (*p == '0') {
        ++p;
    } else {
        while (p < end && is_digit(*p)) ++p;
    }
    if (p < end && *p == '.') {
        ++p;
        if (p >= end || !is_digit(*p)) return false;
        while (p < end && is_digit(*p)) ++p;
    }
    plain = p - begin <= 18;
    if (p < end && (*p == 'e' || *p == 'E')) {
        plain = false;
        ++p;
        if (p < end && (*p == '+' || *p == '-')) ++p;
        if (p >= end || !is_digit(*p)) return false;
        while (p < end && is_digit(*p)) ++p;
    }
    return true;
}

inline bool skip_word(const char*& p, const char* end, const char* word, std::size_t length) {
    if (static_cast<std::size_t>(end - p) < length || std::memcmp(p, word, length) != 0) return false;
    p += length;
    return true;
}

inline bool skip_null(const char*& p, const char* end) { return skip_word(p, end, "null", 4); }

// A key and its colon.
inline bool skip_key(const char*& p, const char* end) {
    Text key;
    if (!scan_string(p, end, key)) return false;
    skip_blank(p, end);
    return skip_char(p, end, ':');
}

// Any value. `plain` stays true only if every number in it is a plain one.
inline bool skip_value(const char*& p, const char* end, bool& plain) {
    constexpr int kDeepest = 62;
    std::uint64_t kinds = 0;  // one bit per open bracket: 1 is an object
    int depth = 0;
    for (;;) {
        skip_blank(p, end);
        if (p >= end) return false;
        switch (*p) {
            case '"': {
                Text text;
                if (!scan_string(p, end, text)) return false;
                break;
            }
            case '{':
            case '[': {
                const bool object = *p++ == '{';
                skip_blank(p, end);
                if (skip_char(p, end, object ? '}' : ']')) break;
                if (depth == kDeepest) return false;
                ++depth;
                kinds = kinds << 1 | (object ? 1u : 0u);
                if (object && !skip_key(p, end)) return false;
                continue;
            }
            case 't':
                if (!skip_word(p, end, "true", 4)) return false;
                break;
            case 'f':
                if (!skip_word(p, end, "false", 5)) return false;
                break;
            case 'n':
                if (!skip_null(p, end)) return false;
                break;
            default: {
                bool plain_number = true;
                if (!skip_number(p, end, plain_number)) return false;
                plain &= plain_number;
            }
        }
        for (;;) {
            if (depth == 0) return true;
            skip_blank(p, end);
            if (p >= end) return false;
            const bool object = (kinds & 1u) != 0;
            if (*p == ',') {
                ++p;
                skip_blank(p, end);
                if (object && !skip_key(p, end)) return false;
                break;
            }
            if (*p != (object ? '}' : ']')) return false;
            ++p;
            kinds >>= 1;
            --depth;
        }
    }
}

}  // namespace tracekit
