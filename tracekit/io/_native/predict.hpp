// Guesses the next key. Writers repeat themselves: after a value, the bytes up to the next
// value (`,\n    "ts": `) are one of a few texts seen at that point before. So one wide compare
// mostly replaces reading blanks, comma, key and colon byte by byte.
#pragma once

#include <cstdint>
#include <cstring>

#include "json.hpp"

namespace tracekit {

class Predictor {
  public:
    static constexpr int kRoots = 32;  // nodes that stand for "just after an opening brace"
    static constexpr int kNone = -1;

    Predictor() { std::memset(static_cast<void*>(nodes_), 0, sizeof nodes_); }

    static bool is_root(int node) { return node >= 0 && node < kRoots; }

    // The successor of `node` whose text stands at `p`, which then moves past it; else kNone.
    int match(int node, const char*& p, const char* end) const {
        if (node < 0 || end - p < static_cast<std::ptrdiff_t>(kTextBytes)) return kNone;
        const Node& from = nodes_[node];
        for (int i = 0; i < kNext && from.next[i] != 0; ++i) {
            const Node& to = nodes_[from.next[i]];
            if (same(to, p)) {
                p += to.length;
                return from.next[i];
            }
        }
        return kNone;
    }

    std::uint8_t key(int node) const { return nodes_[node].key; }

    // Remembers that [begin, end) followed `node` and led to `key`; its node, or kNone.
    int learn(int node, const char* begin, const char* end, std::uint8_t key) {
        const std::size_t length = static_cast<std::size_t>(end - begin);
        if (node < 0 || length > kTextBytes || used_ == kNodes) return kNone;
        const int made = used_++;
        Node& to = nodes_[made];
        std::memcpy(to.text, begin, length);
        to.length = static_cast<std::uint8_t>(length);
        to.mask = length == 32 ? 0xffffffffu : (1u << length) - 1u;
        to.key = key;
        Node& from = nodes_[node];
        int place = 0;
        while (place < kNext && from.next[place] != 0) ++place;
        if (place == kNext) place = from.turn++ % kNext;
        from.next[place] = static_cast<std::int16_t>(made);
        return made;
    }

  private:
    static constexpr std::size_t kTextBytes = 32;
    static constexpr int kNodes = 1024;
    static constexpr int kNext = 6;

    struct Node {
        char text[kTextBytes];
        std::uint32_t mask;
        std::int16_t next[kNext];  // 0 ends the list: node 0 is a root, never a successor
        std::uint8_t length, key, turn;
    };

    static bool same(const Node& node, const char* p) {
#if defined(TRACEKIT_SSE2)
        const auto load = [](const char* from) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        };
        const auto equal = [&load](const char* a, const char* b) {
            return static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(load(a), load(b))));
        };
        const std::uint32_t low = equal(node.text, p);
        if ((~low & node.mask & 0xffffu) != 0) return false;
        if (node.length <= 16) return true;
        return (~(equal(node.text + 16, p + 16) << 16) & node.mask & 0xffff0000u) == 0;
#else
        return std::memcmp(node.text, p, node.length) == 0;
#endif
    }

    int used_ = kRoots;
    Node nodes_[kNodes];
};

}  // namespace tracekit
