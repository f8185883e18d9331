// Fuzzes the native tokenizer alone, under AddressSanitizer and UBSan.
//
// With libFuzzer:
//   clang++ -std=c++17 -g -O1 -fsanitize=fuzzer,address,undefined -Itracekit/io/_native
//       tests/fuzz/tokenizer_fuzz.cpp -o fuzz && ./fuzz sample_traces/broken
// With any compiler, a driver of its own mutates the files named (by hand: tests/fuzz/run_native.sh):
//   g++ -std=c++17 -g -O1 -fsanitize=address,undefined -DSTANDALONE -Itracekit/io/_native
//       tests/fuzz/tokenizer_fuzz.cpp -o fuzz && ./fuzz SECONDS FILE...
//
// Every input is copied to a block of exactly its size, so one byte read too many is an error.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tokenizer.hpp"

namespace {

const tracekit::Limits kLimits = {64,   200,  4096, 256, 4'600'000'000'000'000 - 2,
                                  86'400'000'000 - 2};

void check(bool holds) {
    if (!holds) std::abort();
}

// Takes a block, and checks that a refused one leaves nothing behind.
std::int64_t take(tracekit::Tokenizer& tokenizer, const std::uint8_t* data, std::size_t size) {
    std::unique_ptr<char[]> block(new char[size]);
    if (size != 0) std::memcpy(block.get(), data, size);
    const std::size_t rows = tokenizer.rows.size();
    const std::size_t strings = tokenizer.strings.size();
    const std::size_t marks = tokenizer.marks.size();
    const std::int64_t events = tokenizer.events;
    const std::int64_t end = tokenizer.take(block.get(), size, 1000);
    check(end >= -1 && end <= static_cast<std::int64_t>(size));
    if (end == tracekit::Tokenizer::kNotPlain) {
        check(tokenizer.rows.size() == rows && tokenizer.strings.size() == strings);
        check(tokenizer.marks.size() == marks && tokenizer.events == events);
        check(tokenizer.side.empty());
    }
    for (const tracekit::SideRow& item : tokenizer.side) {
        check(item.begin < item.end && item.end <= size);
        check(item.row < static_cast<std::int64_t>(tokenizer.rows.size()));
    }
    for (std::size_t row = rows; row < tokenizer.rows.size(); ++row) {
        for (const std::int32_t* column :
             {tokenizer.rows.category.data(), tokenizer.rows.name.data(),
              tokenizer.rows.pid.data(), tokenizer.rows.tid.data()}) {
            check(column[row] >= 0 &&
                  column[row] < static_cast<std::int32_t>(tokenizer.strings.size()));
        }
    }
    return end;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    tracekit::Tokenizer tokenizer(kLimits);
    // Twice in a row, then in two halves: what was learnt or taken back must not matter.
    const std::int64_t first = take(tokenizer, data, size);
    const std::int64_t again = take(tokenizer, data, size);
    check(first == again || first == 0 || again == -1);
    take(tokenizer, data, size / 2);
    take(tokenizer, data + size / 2, size - size / 2);
    return 0;
}

#if defined(STANDALONE)

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace {

const char* const kFragments[] = {
    "\"", "\\", "}, {", "]", "[", "{", "}", ",", ":", "\x1f", "\xff", "\xed\xa0\x80", "\xc3\xa9", "null",
    "-", "1e9", "0.", "9999999999999999", "\"ts\": ", "\"ph\": \"B\", ", "\\u0041", "\\ud800", "\\u00",
    "\"args\": {\"Collective name\": \"a\"}, ", "\"args\": {\"Input Dims\": [[1]]}, ", "\"12\"",
    "\"ts\": 4.00049999, ", "\"dur\": 3, ", "\n    ", "true", "{\"a\": [1, {\"b\": []}]}"};

std::string mutate(std::string text, std::mt19937_64& random) {
    const auto below = [&random](std::size_t bound) {
        return static_cast<std::size_t>(random() % (bound + 1));
    };
    for (std::size_t left = 1 + below(4); left > 0; --left) {
        const std::size_t place = below(text.size());
        switch (below(5)) {
            case 0: text.resize(place); break;
            case 1: text.erase(place, 1 + below(20)); break;
            case 2:
                if (place < text.size()) {
                    text[place] = static_cast<char>(text[place] ^ (1 << below(7)));
                }
                break;
            case 3: text.insert(place, text, below(text.size()), below(200)); break;
            default: text.insert(place, kFragments[below(std::size(kFragments) - 1)]);
        }
    }
    return text;
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<std::string> seeds;
    for (int i = 2; i < argc; ++i) {
        std::ifstream file(argv[i], std::ios::binary);
        std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        // The tokenizer sees what follows the beginning of the event list.
        const std::size_t list = text.find("\"traceEvents\"");
        const std::size_t begin = list == std::string::npos ? 0 : text.find('[', list);
        if (begin < text.size() && text.size() < 20000) seeds.push_back(text.substr(begin + 1));
    }
    if (seeds.empty()) return 2;
    std::mt19937_64 random(std::random_device{}());
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[1]));
    long count = 0;
    while (std::chrono::steady_clock::now() < end) {
        for (int i = 0; i < 100; ++i, ++count) {
            std::string text = mutate(seeds[random() % seeds.size()], random);
            LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
            if (count % 50 == 0 && text.size() < 20000 && seeds.size() < 5000) seeds.push_back(text);
        }
    }
    std::printf("%ld inputs\n", count);
}

#endif
