// Columns that grow in place, and a table that gives every string a code.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <vector>

#if defined(_MSC_VER)
#include <intrin.h>
#endif

namespace tracekit {

// A growing array. Pages it never wrote cost no memory, and growing one moves none.
template <class T>
class Column {
  public:
    Column() = default;
    Column(const Column&) = delete;
    Column& operator=(const Column&) = delete;
    ~Column() { std::free(data_); }

    void reserve(std::size_t capacity) {
        if (capacity > SIZE_MAX / sizeof(T)) throw std::bad_alloc();
        void* grown = std::realloc(data_, (capacity ? capacity : 1) * sizeof(T));
        if (grown == nullptr) throw std::bad_alloc();
        data_ = static_cast<T*>(grown);
    }
    T* data() { return data_; }
    // Gives the array away; free it with std::free.
    T* release() {
        T* data = data_;
        data_ = nullptr;
        return data;
    }

  private:
    T* data_ = nullptr;
};

inline std::uint64_t multiply_fold(std::uint64_t a, std::uint64_t b) {
#if defined(__SIZEOF_INT128__)
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
#elif defined(_M_X64)
    std::uint64_t high;
    const std::uint64_t low = _umul128(a, b, &high);
    return low ^ high;
#else
    const std::uint64_t al = a & 0xffffffffu, ah = a >> 32, bl = b & 0xffffffffu, bh = b >> 32;
    const std::uint64_t low = al * bl, m1 = ah * bl, m2 = al * bh, high = ah * bh;
    const std::uint64_t carry = ((low >> 32) + (m1 & 0xffffffffu) + (m2 & 0xffffffffu)) >> 32;
    return (low + (m1 << 32) + (m2 << 32)) ^ (high + (m1 >> 32) + (m2 >> 32) + carry);
#endif
}

// Strings and their codes, numbered in order of arrival, bounded in count and bytes.
class StringTable {
  public:
    static constexpr std::int32_t kFull = -1;

    StringTable(std::size_t most, std::size_t most_bytes)
        : most_(most), most_bytes_(most_bytes), slots_(1024, -1) {
        bytes_.reserve(1 << 16);
        // Seeded, so that no file can be written to make its names collide.
        std::random_device device;
        for (std::uint64_t* seed : {&seed0_, &seed1_}) {
            *seed = (static_cast<std::uint64_t>(device()) << 32 | device()) | 1u;
        }
    }

    std::size_t size() const { return entries_.size(); }
    const char* text(std::size_t code) const { return bytes_.data() + entries_[code].offset; }
    std::size_t length(std::size_t code) const { return entries_[code].length; }

    bool is(std::int32_t code, const char* text, std::size_t length) const {
        const Entry& entry = entries_[static_cast<std::size_t>(code)];
        return entry.length == length && std::memcmp(bytes_.data() + entry.offset, text, length) == 0;
    }

    // The code of a string, new or known; kFull when it is new and there is no room.
    std::int32_t code(const char* text, std::size_t length) {
        const std::uint64_t hash = hash_of(text, length);
        const std::uint32_t tag = static_cast<std::uint32_t>(hash >> 32);
        std::size_t mask = slots_.size() - 1;
        std::size_t place = static_cast<std::size_t>(hash) & mask;
        for (; slots_[place] >= 0; place = (place + 1) & mask) {
            const std::int32_t found = slots_[place];
            if (entries_[static_cast<std::size_t>(found)].tag == tag && is(found, text, length)) {
                return found;
            }
        }
        if (entries_.size() >= most_ || length > most_bytes_ - bytes_.size()) return kFull;
        if (entries_.size() * 2 >= slots_.size()) {
            grow();
            mask = slots_.size() - 1;
            place = static_cast<std::size_t>(hash) & mask;
            while (slots_[place] >= 0) place = (place + 1) & mask;
        }
        const std::int32_t code = static_cast<std::int32_t>(entries_.size());
        entries_.push_back({bytes_.size(), static_cast<std::uint32_t>(length), tag, hash});
        bytes_.insert(bytes_.end(), text, text + length);
        slots_[place] = code;
        return code;
    }

    // Forgets the codes from `size` on. The newest goes first, so that it is always the last
    // of its chain and no other string is cut off from its slot.
    void shrink(std::size_t size) {
        const std::size_t mask = slots_.size() - 1;
        while (entries_.size() > size) {
            const std::int32_t code = static_cast<std::int32_t>(entries_.size() - 1);
            std::size_t place = static_cast<std::size_t>(entries_.back().hash) & mask;
            while (slots_[place] != code) place = (place + 1) & mask;
            slots_[place] = -1;
            bytes_.resize(entries_.back().offset);
            entries_.pop_back();
        }
    }

  private:
    struct Entry {
        std::size_t offset;
        std::uint32_t length;
        std::uint32_t tag;
        std::uint64_t hash;
    };

    static std::uint64_t load(const char* p) {
        std::uint64_t word;
        std::memcpy(&word, p, 8);
        return word;
    }

    std::uint64_t hash_of(const char* p, std::size_t length) const {
        std::uint64_t hash = seed0_ ^ length;
        std::size_t left = length;
        for (; left >= 16; left -= 16, p += 16) {
            hash = multiply_fold(load(p) ^ seed1_, load(p + 8) ^ hash);
        }
        char tail[16] = {};
        std::memcpy(tail, p, left);
        hash = multiply_fold(load(tail) ^ seed1_, load(tail + 8) ^ hash);
        return multiply_fold(hash ^ seed0_, seed1_);
    }

    void grow() {
        std::vector<std::int32_t> wider(slots_.size() * 2, -1);
        const std::size_t mask = wider.size() - 1;
        for (std::size_t code = 0; code < entries_.size(); ++code) {
            std::size_t place = static_cast<std::size_t>(entries_[code].hash) & mask;
            while (wider[place] >= 0) place = (place + 1) & mask;
            wider[place] = static_cast<std::int32_t>(code);
        }
        slots_.swap(wider);
    }

    std::size_t most_, most_bytes_;
    std::uint64_t seed0_ = 0, seed1_ = 0;
    std::vector<std::int32_t> slots_;
    std::vector<Entry> entries_;
    std::vector<char> bytes_;
};

}  // namespace tracekit
