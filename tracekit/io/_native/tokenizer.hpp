// One block of a trace's event list to rows of columns.
//
// The tokenizer takes a block only when every byte of it is plain, valid JSON of the expected
// types; otherwise it leaves no trace of the block, and the Python reader, which knows every odd
// form and every repair, appends the block's rows instead. So both readers give equal columns.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "columns.hpp"
#include "json.hpp"
#include "predict.hpp"

namespace tracekit {

constexpr std::int64_t kMissing = -1;

// What the Python reader sets too; passed in, so that there is one definition.
struct Limits {
    std::size_t name_bytes;
    std::size_t strings;
    std::size_t string_bytes;
    std::size_t list_bytes;    // lists of ranks or shapes that are longer are not read
    std::int64_t time_us;      // times at or beyond it are no times
    std::int64_t duration_us;  // durations at or beyond it are not believed
};

// One row. Field names are those of EventColumns.
struct Row {
    std::int64_t start_ns, duration_ns, correlation, external_id, device, stream;
    std::int32_t category, name, pid, tid, shape;
};

class Rows {
  public:
    Column<std::int64_t> start_ns, duration_ns, correlation, external_id, device, stream;
    Column<std::int32_t> category, name, pid, tid, shape;

    std::size_t size() const { return size_; }
    void shrink(std::size_t size) { size_ = size; }

    void reserve(std::size_t capacity) {
        for (auto* column : {&start_ns, &duration_ns, &correlation, &external_id, &device, &stream}) {
            column->reserve(capacity);
        }
        for (auto* column : {&category, &name, &pid, &tid, &shape}) {
            column->reserve(capacity);
        }
        capacity_ = capacity;
    }
    void make_room(std::size_t more) {
        if (size_ + more > capacity_) {
            const std::size_t twice = capacity_ * 2;
            reserve(twice > size_ + more ? twice : size_ + more);
        }
    }
    void push(const Row& row) {
        make_room(1);
        start_ns.data()[size_] = row.start_ns;
        duration_ns.data()[size_] = row.duration_ns;
        correlation.data()[size_] = row.correlation;
        external_id.data()[size_] = row.external_id;
        category.data()[size_] = row.category;
        name.data()[size_] = row.name;
        pid.data()[size_] = row.pid;
        tid.data()[size_] = row.tid;
        device.data()[size_] = row.device;
        stream.data()[size_] = row.stream;
        shape.data()[size_] = row.shape;
        ++size_;
    }
    void set_size(std::size_t size) { size_ = size; }

  private:
    std::size_t size_ = 0;
    std::size_t capacity_ = 0;
};

// Arguments that the Python reader decodes: where they stand in the block.
struct SideRow {
    std::int64_t row;
    std::int32_t code;  // of the event's name when only its name decides, else -1
    std::size_t begin, end;
};

// A begin or end event, to be paired when the whole file is read.
struct Mark {
    std::int64_t row, offset;
    bool is_end;
};

class Tokenizer {
  public:
    static constexpr std::int64_t kNotPlain = -1;

    explicit Tokenizer(const Limits& limits)
        : limits_(limits), strings(limits.strings, limits.string_bytes) {}

  private:
    const Limits limits_;

  public:
    Rows rows;
    StringTable strings;
    std::vector<SideRow> side;  // of the last block
    std::vector<Mark> marks;
    std::int64_t events = 0;

    // Takes the block's events. Returns kNotPlain, or 0 when the list goes on after the block,
    // else the place just after the list's closing bracket. `offset` is the block's in the file.
    std::int64_t take(const char* data, std::size_t length, std::int64_t offset) {
        const std::size_t rows_before = rows.size();
        const std::size_t strings_before = strings.size();
        const std::size_t marks_before = marks.size();
        const std::int64_t events_before = events;
        side.clear();
        block_ = data;
        offset_ = offset;
        const std::int64_t result = list(data, data + length);
        if (result == kNotPlain) {
            rows.shrink(rows_before);
            strings.shrink(strings_before);
            marks.resize(marks_before);
            events = events_before;
            side.clear();
            last_category_ = last_pid_ = last_tid_ = last_shape_ = -1;
        }
        return result;
    }

  private:
    enum class Kind { kAbsent, kText, kInteger };

    // A value that becomes a string code: text, or an integer in its own digits.
    struct Label {
        Kind kind = Kind::kAbsent;
        Text text;
    };
    struct Time {
        bool known = false;
        std::int64_t ns = 0;
    };
    struct Id {
        bool known = false;
        std::int64_t value = kMissing;
    };
    // Up to three extents of a launch.
    struct Extents {
        int count = 0;
        std::int64_t value[3] = {0, 0, 0};
    };
    struct Args {
        const char* begin = nullptr;
        const char* end = nullptr;
        Extents grid, block;
        Id correlation, external_id, external_id_2021, device, stream;
        bool collective = false;
        bool input_dims = false;
    };
    struct Event {
        char phase = 'X';
        Label category, name, pid, tid;
        Time start, duration;
        Args args;
    };

    std::int64_t list(const char* begin, const char* end) {
        const char* p = begin;
        skip_blank(p, end);
        for (;;) {
            if (!event(p, end)) return kNotPlain;
            skip_blank(p, end);
            if (p >= end) return 0;
            if (*p == ']') return p + 1 - begin;
            if (*p != ',') return kNotPlain;
            ++p;
            skip_blank(p, end);
        }
    }

    enum class Key : std::uint8_t {
        kEnd, kOther,
        // of an event
        kPhase, kStart, kDuration, kCategory, kName, kPid, kTid, kArgs,
        // of its arguments
        kCorrelation, kExternalId, kExternalId2021, kDevice, kStream,
        kCollective, kInputDims, kNumber, kText, kList, kGrid, kBlock,
    };

    // Reads up to the next member's value, or past the end of the object.
    template <class KeyOf>
    bool member(const char*& p, const char* end, int& node, bool& first, KeyOf key_of, Key& key) {
        const int known = predictor_.match(node, p, end);
        if (known >= 0) {
            node = known;
            key = static_cast<Key>(predictor_.key(known));
            first = false;
            skip_blank(p, end);
            return true;
        }
        const char* begin = p;
        skip_blank(p, end);
        if (p >= end) return false;
        if (*p == '}') {
            ++p;
            key = Key::kEnd;
        } else {
            if (!first) {
                if (!skip_char(p, end, ',')) return false;
                skip_blank(p, end);
            }
            Text text;
            if (!scan_string(p, end, text) || text.escaped) return false;
            skip_blank(p, end);
            if (!skip_char(p, end, ':')) return false;
            skip_blank(p, end);
            key = key_of(text);
        }
        first = false;
        node = predictor_.learn(node, begin, p, static_cast<std::uint8_t>(key));
        return true;
    }

    bool event(const char*& p, const char* end) {
        const char* begin = p;
        if (!skip_char(p, end, '{')) return false;
        Event found;
        int node = kEventRoot;
        bool first = true;
        for (;;) {
            Key key;
            if (!member(p, end, node, first, event_key, key)) return false;
            if (key == Key::kEnd) break;
            if (!event_value(p, end, key, found)) return false;
        }
        ++events;
        return add(found, begin);
    }

    static Key event_key(const Text& key) {
        const char* k = key.begin;
        switch (key.size()) {
            case 2:
                if (std::memcmp(k, "ph", 2) == 0) return Key::kPhase;
                if (std::memcmp(k, "ts", 2) == 0) return Key::kStart;
                break;
            case 3:
                if (std::memcmp(k, "cat", 3) == 0) return Key::kCategory;
                if (std::memcmp(k, "pid", 3) == 0) return Key::kPid;
                if (std::memcmp(k, "tid", 3) == 0) return Key::kTid;
                if (std::memcmp(k, "dur", 3) == 0) return Key::kDuration;
                break;
            case 4:
                if (std::memcmp(k, "name", 4) == 0) return Key::kName;
                if (std::memcmp(k, "args", 4) == 0) return Key::kArgs;
                break;
            default:
                break;
        }
        return Key::kOther;
    }

    bool event_value(const char*& p, const char* end, Key key, Event& out) {
        switch (key) {
            case Key::kPhase: return phase(p, end, out.phase);
            case Key::kStart: return time(p, end, limits_.time_us, out.start);
            case Key::kDuration: return time(p, end, limits_.duration_us, out.duration);
            case Key::kCategory:
                return label(p, end, out.category) && out.category.kind != Kind::kInteger;
            case Key::kName: return label(p, end, out.name);
            case Key::kPid: return label(p, end, out.pid);
            case Key::kTid: return label(p, end, out.tid);
            case Key::kArgs: return args(p, end, args_root(out), out.args);
            default: {
                bool plain = true;
                return skip_value(p, end, plain);
            }
        }
    }

    // Arguments differ by category, so each of a few kinds has a memory of its own.
    static int args_root(const Event& event) {
        const Text& text = event.category.text;
        if (event.category.kind != Kind::kText || text.size() == 0) return kEventRoot + 1;
        const std::size_t mixed = text.size() * 5 + static_cast<unsigned char>(*text.begin);
        return kEventRoot + 2 + static_cast<int>(mixed % (Predictor::kRoots - kEventRoot - 2));
    }

    static bool phase(const char*& p, const char* end, char& out) {
        Text text;
        if (!scan_string(p, end, text) || text.escaped) return false;
        out = text.size() == 1 ? *text.begin : '\0';
        return true;
    }

    // Text, a short integer, or null.
    static bool label(const char*& p, const char* end, Label& out) {
        out.kind = Kind::kAbsent;
        if (p >= end) return false;
        if (*p == '"') {
            out.kind = Kind::kText;
            return scan_string(p, end, out.text);
        }
        if (*p == 'n') return skip_null(p, end);
        std::int64_t value;
        out.kind = Kind::kInteger;
        out.text.begin = p;
        out.text.escaped = false;
        if (!integer(p, end, value)) return false;
        out.text.end = p;
        return value != 0 || out.text.size() == 1;  // not "-0"
    }

    // An integer of at most 18 digits that is not the beginning of another number.
    static bool integer(const char*& p, const char* end, std::int64_t& out) {
        const bool negative = skip_char(p, end, '-');
        const char* digits = p;
        std::int64_t value = 0;
        for (; p < end && is_digit(*p); ++p) {
            if (p - digits == 18) return false;
            value = value * 10 + (*p - '0');
        }
        if (p == digits || (*digits == '0' && p - digits > 1)) return false;
        if (p < end && (*p == '.' || *p == 'e' || *p == 'E')) return false;
        out = negative ? -value : value;
        return true;
    }

    // An integer, also in quotes, text that begins like none (ROCm's "0x0"), or null.
    static bool id(const char*& p, const char* end, Id& out) {
        out = Id();
        if (p >= end) return false;
        if (*p == 'n') return skip_null(p, end);
        out.known = true;
        if (*p != '"') return integer(p, end, out.value);
        const char* inside = p + 1;
        if (integer(inside, end, out.value) && skip_char(inside, end, '"')) {
            p = inside;
            return true;
        }
        out.value = kMissing;
        Text text;
        return scan_string(p, end, text) && !text.escaped && text.size() >= 2 &&
               (is_letter(text.begin[0]) || (text.begin[0] == '0' && text.begin[1] == 'x'));
    }

    static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

    // Decimal microseconds to ns: a number, also in quotes, or null.
    static bool time(const char*& p, const char* end, std::int64_t limit_us, Time& out) {
        out = Time();
        if (p >= end) return false;
        if (*p == 'n') return skip_null(p, end);
        const bool quoted = skip_char(p, end, '"');
        out.known = true;
        return decimal(p, end, limit_us, out.ns) && (!quoted || skip_char(p, end, '"'));
    }

    static bool decimal(const char*& p, const char* end, std::int64_t limit_us, std::int64_t& out) {
        const bool negative = skip_char(p, end, '-');
        const char* digits = p;
        std::int64_t whole = 0;
        for (; p < end && is_digit(*p); ++p) {
            if (p - digits == 17) return false;
            whole = whole * 10 + (*p - '0');
        }
        if (p == digits || (*digits == '0' && p - digits > 1) || whole >= limit_us) return false;
        std::int64_t fraction = 0;
        std::ptrdiff_t places = 0;
        if (p < end && *p == '.') {
            const char* first = ++p;
            for (; p < end && is_digit(*p); ++p) {
                if (p - first == 17) return false;
                fraction = fraction * 10 + (*p - '0');
            }
            places = p - first;
            if (places == 0) return false;
        }
        if (p < end && (*p == 'e' || *p == 'E')) return false;
        if (places <= 3) {
            static constexpr std::int64_t kScale[] = {1000, 100, 10, 1};
            const std::int64_t ns = whole * 1000 + fraction * kScale[places];
            out = negative ? -ns : ns;
            return true;
        }
        return rounded(whole, fraction, places, negative, out);
    }

    // More than three decimals: as the Python reader rounds, from the nearest float64. Both
    // operands of the division are exact, so its result is that float; else not plain. (Times
    // for which the reader goes back to the decimal text are too large to pass.)
    static bool rounded(std::int64_t whole, std::int64_t fraction, std::ptrdiff_t places,
                        bool negative, std::int64_t& out) {
        static constexpr double kPower[] = {1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,
                                            1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17};
        constexpr double kExact = 4503599627370496.0;  // 2**52
        const double scaled =
            static_cast<double>(whole) * kPower[places] + static_cast<double>(fraction);
        if (scaled >= kExact) return false;
        const double us = (negative ? -scaled : scaled) / kPower[places];
        const double floor = std::floor(us);
        out = static_cast<std::int64_t>(floor) * 1000 +
              static_cast<std::int64_t>(std::nearbyint((us - floor) * 1000));
        return true;
    }

    bool args(const char*& p, const char* end, int node, Args& out) {
        out = Args();
        if (p < end && *p == 'n') return skip_null(p, end);
        out.begin = p;
        if (!skip_char(p, end, '{')) return false;
        bool first = true;
        for (;;) {
            Key key;
            if (!member(p, end, node, first, argument_key, key)) return false;
            if (key == Key::kEnd) break;
            if (!argument(p, end, key, out)) return false;
        }
        out.end = p;
        return true;
    }

    static Key argument_key(const Text& key) {
        struct Known {
            const char* text;
            std::size_t length;
            Key key;
        };
        static constexpr Known kKnown[] = {
            {"Seq", 3, Key::kNumber},
            {"Rank", 4, Key::kNumber},
            {"grid", 4, Key::kGrid},
            {"block", 5, Key::kBlock},
            {"dtype", 5, Key::kText},
            {"device", 6, Key::kDevice},
            {"stream", 6, Key::kStream},
            {"Src Rank", 8, Key::kNumber},
            {"Dst Rank", 8, Key::kNumber},
            {"Group size", 10, Key::kNumber},
            {"Input Dims", 10, Key::kInputDims},
            {"Input type", 10, Key::kList},
            {"correlation", 11, Key::kCorrelation},
            {"External id", 11, Key::kExternalId},
            {"external id", 11, Key::kExternalId2021},
            {"In msg nelems", 13, Key::kNumber},
            {"In split size", 13, Key::kList},
            {"Out msg nelems", 14, Key::kNumber},
            {"Out split size", 14, Key::kList},
            {"Concrete Inputs", 15, Key::kList},
            {"Collective name", 15, Key::kCollective},
            {"Process Group ID", 16, Key::kNumber},
            {"Process Group Name", 18, Key::kNumber},
            {"Process Group Ranks", 19, Key::kList},
            {"Process Group Description", 25, Key::kText},
        };
        for (const Known& known : kKnown) {
            if (key.equals(known.text, known.length)) return known.key;
        }
        return Key::kOther;
    }

    bool argument(const char*& p, const char* end, Key key, Args& out) const {
        bool plain = true;
        switch (key) {
            case Key::kCorrelation: return id(p, end, out.correlation);
            case Key::kExternalId: return id(p, end, out.external_id);
            case Key::kExternalId2021: return id(p, end, out.external_id_2021);
            case Key::kDevice: return id(p, end, out.device);
            case Key::kStream: return id(p, end, out.stream);
            case Key::kCollective: return text_or_null(p, end, &out.collective);
            case Key::kInputDims: out.input_dims = true; return list_value(p, end);
            case Key::kNumber: return number(p, end);
            case Key::kText: return text_or_null(p, end, nullptr);
            case Key::kList: return list_value(p, end);
            case Key::kGrid: return extents(p, end, out.grid);
            case Key::kBlock: return extents(p, end, out.block);
            default: return skip_value(p, end, plain);
        }
    }

    // A list of one to three integers that are extents of a launch, or null.
    static bool extents(const char*& p, const char* end, Extents& out) {
        out.count = 0;
        if (p < end && *p == 'n') return skip_null(p, end);
        const char* begin = p;
        if (!skip_char(p, end, '[')) return false;
        for (;;) {
            skip_blank(p, end);
            if (out.count == 3 || p >= end || !is_digit(*p)) return false;
            std::int64_t value;
            if (!integer(p, end, value) || value > kLargestExtent) return false;
            out.value[out.count++] = value;
            skip_blank(p, end);
            if (skip_char(p, end, ']')) return p - begin <= kLongestExtents;
            if (!skip_char(p, end, ',')) return false;
        }
    }

    // A value that may be decoded to Python objects, so it must be short and in range.
    bool list_value(const char*& p, const char* end) const {
        const char* begin = p;
        bool plain = true;
        return skip_value(p, end, plain) && plain &&
               static_cast<std::size_t>(p - begin) <= limits_.list_bytes;
    }

    // Of the type the Python reader allows; its value is read there, if at all.
    static bool number(const char*& p, const char* end) {
        if (p >= end) return false;
        if (*p == '"' || *p == 'n') return text_or_null(p, end, nullptr);
        bool plain = true;
        return skip_number(p, end, plain) && plain;
    }

    static bool text_or_null(const char*& p, const char* end, bool* is_text) {
        if (is_text != nullptr) *is_text = false;
        if (p < end && *p == 'n') return skip_null(p, end);
        if (is_text != nullptr) *is_text = true;
        Text text;
        return scan_string(p, end, text);
    }

    bool add(const Event& event, const char* begin) {
        const bool complete = event.phase == 'X';
        if (!complete && event.phase != 'B' && event.phase != 'E') return true;
        if (event.category.text.escaped) return false;
        if (complete && event.category.kind == Kind::kText &&
            event.category.text.equals("python_function", 15)) {
            return true;
        }
        if (!event.start.known) return false;
        if (complete && (!event.duration.known || event.duration.ns < 0)) return false;
        const Args& args = event.args;
        const Id& external = args.external_id.known ? args.external_id : args.external_id_2021;
        Row row;
        row.start_ns = event.start.ns;
        row.duration_ns = complete ? event.duration.ns : 0;
        row.correlation = args.correlation.value;
        row.external_id = external.value;
        row.device = args.device.value;
        row.stream = args.stream.value;
        std::int32_t none = -1;
        if (!code(event.category, last_category_, row.category) || !code(event.name, none, row.name) ||
            !code(event.pid, last_pid_, row.pid) || !code(event.tid, last_tid_, row.tid)) {
            return false;
        }
        if (!shape(args, row.shape)) return false;
        const std::int64_t number = static_cast<std::int64_t>(rows.size());
        rows.push(row);
        if (args.collective || args.input_dims) {
            side.push_back({number, args.collective ? -1 : row.name,
                            static_cast<std::size_t>(args.begin - block_),
                            static_cast<std::size_t>(args.end - block_)});
        }
        if (!complete) marks.push_back({number, offset_ + (begin - block_), event.phase == 'E'});
        return true;
    }

    // The code of a launch's grid and block, "8x1x1 / 128x1x1"; -1 without both.
    bool shape(const Args& args, std::int32_t& out) {
        out = -1;
        if (args.grid.count == 0 || args.block.count == 0) return true;
        scratch_.clear();
        push_extents(args.grid);
        scratch_ += " / ";
        push_extents(args.block);
        if (last_shape_ < 0 || !strings.is(last_shape_, scratch_.data(), scratch_.size())) {
            last_shape_ = strings.code(scratch_.data(), scratch_.size());
            if (last_shape_ == StringTable::kFull) return false;
        }
        out = last_shape_;
        return true;
    }

    void push_extents(const Extents& extents) {
        for (int i = 0; i < extents.count; ++i) {
            if (i > 0) scratch_.push_back('x');
            scratch_ += std::to_string(extents.value[i]);
        }
    }

    // The code of a label; `last` remembers that of the event before, which is most often it.
    bool code(const Label& label, std::int32_t& last, std::int32_t& out) {
        const char* text = label.text.begin;
        std::size_t length = label.text.size();
        if (label.kind == Kind::kAbsent) {
            text = "";
            length = 0;
        } else if (label.text.escaped) {
            unescape(label.text);
            text = scratch_.data();
            length = scratch_.size();
        }
        if (length > limits_.name_bytes) return false;
        if (last < 0 || !strings.is(last, text, length)) {
            last = strings.code(text, length);
            if (last == StringTable::kFull) return false;
        }
        out = last;
        return true;
    }

    // Undoes the escapes of a string that was scanned, so all of them are valid.
    void unescape(const Text& text) {
        scratch_.clear();
        for (const char* p = text.begin; p < text.end;) {
            if (*p != '\\') {
                scratch_.push_back(*p++);
                continue;
            }
            switch (p[1]) {
                case 'b': scratch_.push_back('\b'); break;
                case 'f': scratch_.push_back('\f'); break;
                case 'n': scratch_.push_back('\n'); break;
                case 'r': scratch_.push_back('\r'); break;
                case 't': scratch_.push_back('\t'); break;
                case 'u':
                    push_utf8(static_cast<unsigned>(hex_quad(p + 2, text.end)));
                    p += 4;
                    break;
                default: scratch_.push_back(p[1]);
            }
            p += 2;
        }
    }

    void push_utf8(unsigned code) {
        if (code < 0x80) {
            scratch_.push_back(static_cast<char>(code));
        } else if (code < 0x800) {
            scratch_.push_back(static_cast<char>(0xc0 | code >> 6));
            scratch_.push_back(static_cast<char>(0x80 | (code & 0x3f)));
        } else {
            scratch_.push_back(static_cast<char>(0xe0 | code >> 12));
            scratch_.push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3f)));
            scratch_.push_back(static_cast<char>(0x80 | (code & 0x3f)));
        }
    }

    static constexpr int kEventRoot = 1;
    static constexpr std::int64_t kLargestExtent = 0x7fffffff;  // as the Python reader has them
    static constexpr std::ptrdiff_t kLongestExtents = 1 << 10;

    Predictor predictor_;
    const char* block_ = nullptr;
    std::int64_t offset_ = 0;
    std::int32_t last_category_ = -1, last_pid_ = -1, last_tid_ = -1, last_shape_ = -1;
    std::string scratch_;
};

}  // namespace tracekit
