// The Python face of the tokenizer: `tracekit.io._tokenizer.Builder`.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "tokenizer.hpp"

namespace py = pybind11;
using tracekit::Mark;
using tracekit::SideRow;

namespace {

class Builder {
  public:
    Builder(std::size_t name_bytes, std::size_t strings, std::size_t string_bytes,
            std::size_t list_bytes, std::int64_t time_us, std::int64_t duration_us)
        : tokenizer_({name_bytes, strings, string_bytes, list_bytes, time_us, duration_us}) {}

    std::int64_t take(const py::buffer& buffer, std::size_t begin, std::size_t end,
                      std::int64_t offset) {
        const py::buffer_info view = buffer.request();
        if (view.ndim != 1 || view.itemsize != 1 || view.strides[0] != 1 || begin > end ||
            end > static_cast<std::size_t>(view.size)) {
            throw py::value_error("the block lies outside of its buffer");
        }
        const char* data = static_cast<const char*>(view.ptr) + begin;
        py::gil_scoped_release nogil;
        return tokenizer_.take(data, end - begin, offset);
    }

    std::size_t rows() const { return tokenizer_.rows.size(); }
    std::int64_t events() const { return tokenizer_.events; }

    // The strings that came since the last call.
    py::list new_strings() {
        py::list found;
        for (; told_ < tokenizer_.strings.size(); ++told_) found.append(text(told_));
        return found;
    }

    // Names whose events' arguments are wanted.
    void flag(const py::list& codes) {
        wanted_.resize(told_, false);
        for (const py::handle& code : codes) wanted_.at(code.cast<std::size_t>()) = true;
    }

    // (row, begin, end, code) of the arguments in the last block that are wanted.
    py::list side_rows() const {
        py::list found;
        for (const SideRow& item : tokenizer_.side) {
            const std::size_t code = static_cast<std::size_t>(item.code);
            if (item.code < 0 || (code < wanted_.size() && wanted_[code])) {
                found.append(py::make_tuple(item.row, item.begin, item.end, item.code));
            }
        }
        return found;
    }

    // The code of a string, or -1 when the table is full.
    std::int32_t code(const py::str& value) {
        Py_ssize_t length = 0;
        const char* utf8 = PyUnicode_AsUTF8AndSize(value.ptr(), &length);
        if (utf8 == nullptr) throw py::error_already_set();
        return tokenizer_.strings.code(utf8, static_cast<std::size_t>(length));
    }

    // Appends rows that Python made, as one array per column.
    void append(const py::dict& block, std::int64_t events) {
        tracekit::Rows& rows = tokenizer_.rows;
        const std::size_t count = py::len(block["start_ns"]);
        rows.make_room(count);
        copy(block, "start_ns", count, rows.start_ns);
        copy(block, "duration_ns", count, rows.duration_ns);
        copy(block, "correlation", count, rows.correlation);
        copy(block, "external_id", count, rows.external_id);
        copy(block, "category", count, rows.category);
        copy(block, "name", count, rows.name);
        copy(block, "pid", count, rows.pid);
        copy(block, "tid", count, rows.tid);
        copy(block, "device", count, rows.device);
        copy(block, "stream", count, rows.stream);
        copy(block, "shape", count, rows.shape);
        rows.set_size(rows.size() + count);
        tokenizer_.events += events;
    }

    void mark(std::int64_t row, std::int64_t offset, bool is_end) {
        tokenizer_.marks.push_back({row, offset, is_end});
    }

    // (n, 3) row, offset, 1 for an end.
    py::array_t<std::int64_t> marks() const {
        const auto count = static_cast<py::ssize_t>(tokenizer_.marks.size());
        py::array_t<std::int64_t> found({count, static_cast<py::ssize_t>(3)});
        auto place = found.mutable_unchecked<2>();
        for (py::ssize_t i = 0; i < count; ++i) {
            const Mark& item = tokenizer_.marks[static_cast<std::size_t>(i)];
            place(i, 0) = item.row;
            place(i, 1) = item.offset;
            place(i, 2) = item.is_end ? 1 : 0;
        }
        return found;
    }

    py::tuple strings() const {
        py::tuple found(tokenizer_.strings.size());
        for (std::size_t code = 0; code < found.size(); ++code) found[code] = text(code);
        return found;
    }

    // All columns by name. They are moved out: the builder is empty afterwards.
    py::dict build() {
        tracekit::Rows& rows = tokenizer_.rows;
        const std::size_t count = rows.size();
        rows.reserve(count);
        py::dict made;
        made["start_ns"] = array(rows.start_ns, count);
        made["duration_ns"] = array(rows.duration_ns, count);
        made["category"] = array(rows.category, count);
        made["name"] = array(rows.name, count);
        made["pid"] = array(rows.pid, count);
        made["tid"] = array(rows.tid, count);
        made["correlation"] = array(rows.correlation, count);
        made["external_id"] = array(rows.external_id, count);
        made["device"] = array(rows.device, count);
        made["stream"] = array(rows.stream, count);
        made["shape"] = array(rows.shape, count);
        rows.set_size(0);
        rows.reserve(0);
        return made;
    }

  private:
    py::str text(std::size_t code) const {
        return py::str(tokenizer_.strings.text(code), tokenizer_.strings.length(code));
    }

    template <class T>
    void copy(const py::dict& block, const char* name, std::size_t count,
              tracekit::Column<T>& column) {
        const auto values =
            py::array_t<T, py::array::c_style | py::array::forcecast>::ensure(block[name]);
        if (!values || static_cast<std::size_t>(values.size()) != count) {
            throw py::value_error("columns of a block differ in length or type");
        }
        if (count) std::memcpy(column.data() + tokenizer_.rows.size(), values.data(), count * sizeof(T));
    }

    template <class T>
    static py::array_t<T> array(tracekit::Column<T>& column, std::size_t count) {
        T* data = column.release();
        py::capsule owner(data, [](void* memory) { std::free(memory); });
        return py::array_t<T>(static_cast<py::ssize_t>(count), data, owner);
    }

    tracekit::Tokenizer tokenizer_;
    std::size_t told_ = 0;
    std::vector<bool> wanted_;
};

}  // namespace

PYBIND11_MODULE(_tokenizer, module) {
    // Raised with every change of what Python and this module expect of each other.
    module.attr("INTERFACE") = 4;
    module.doc() = "Native tokenizer of Kineto event lists.";
    py::class_<Builder>(module, "Builder")
        .def(py::init<std::size_t, std::size_t, std::size_t, std::size_t, std::int64_t,
                      std::int64_t>(),
             py::arg("name_bytes"), py::arg("strings"), py::arg("string_bytes"),
             py::arg("list_bytes"), py::arg("time_us"), py::arg("duration_us"))
        .def("take", &Builder::take)
        .def("new_strings", &Builder::new_strings)
        .def("flag", &Builder::flag)
        .def("side_rows", &Builder::side_rows)
        .def("code", &Builder::code)
        .def("append", &Builder::append)
        .def("mark", &Builder::mark)
        .def("marks", &Builder::marks)
        .def("strings", &Builder::strings)
        .def("build", &Builder::build)
        .def_property_readonly("rows", &Builder::rows)
        .def_property_readonly("events", &Builder::events);
}
