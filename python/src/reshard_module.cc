#include "python/src/reshard_module.h"

#include <array>
#include <cstdint>
#include <hetcomm_plan/hetcomm_plan.h>
#include <memory>
#include <nanobind/stl/tuple.h>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/src/element_types.h"
#include "python/src/layout.h"
#include "python/src/objects.h"

using nb::literals::operator""_a;

namespace hetcomm_python {
namespace {

using Sizes = std::vector<uint64_t>;

hetcomm_datatype_t datatype_named(const std::string& name) { return datatype_of(type_named(name)); }

using LayoutPtr = std::unique_ptr<Layout>;

// One part of a layout: rank, begin, end, offset, strides (None: dense), copy, term.
using PartTuple =
    std::tuple<int32_t, Sizes, Sizes, uint64_t, std::optional<Sizes>, uint32_t, uint32_t>;

void copy_to(const Sizes& from, size_t dimensions, const char* what, uint64_t* to) {
  if (from.size() != dimensions) {
    throw nb::value_error(
        (std::string(what) + " has another number of dimensions than the shape").c_str());
  }
  std::copy(from.begin(), from.end(), to);
}

void check_dimensions(const Sizes& shape) {
  if (shape.size() > HETCOMM_MAX_DIMENSIONS) throw nb::value_error("more than 8 dimensions");
}

LayoutPtr layout_from_parts(const Sizes& shape, const std::vector<PartTuple>& parts,
                            const std::optional<Sizes>& padded_shape, uint32_t terms,
                            uint32_t divisor) {
  check_dimensions(shape);
  if (padded_shape && padded_shape->size() != shape.size()) {
    throw nb::value_error("padded_shape has another number of dimensions than the shape");
  }
  std::vector<hetcomm_part_t> own;
  own.reserve(parts.size());
  for (const auto& [rank, begin, end, offset, strides, copy, term] : parts) {
    hetcomm_part_t& part = own.emplace_back();
    part = {};
    part.rank = rank;
    part.copy = copy;
    part.term = term;
    part.offset = offset;
    copy_to(begin, shape.size(), "begin", part.begin);
    copy_to(end, shape.size(), "end", part.end);
    if (strides) copy_to(*strides, shape.size(), "strides", part.strides);
  }
  hetcomm_layout_options_t options{};
  options.struct_size = sizeof(options);
  options.padded_shape = padded_shape ? padded_shape->data() : nullptr;
  options.terms = terms;
  options.divisor = divisor;
  hetcomm_layout_t* handle = nullptr;
  check(hetcomm_layout_from_parts(shape.size(), shape.data(), own.data(), own.size(), &options,
                                  &handle));
  return std::make_unique<Layout>(handle, shape.size());
}

std::vector<PartTuple> parts_of(const Layout& layout, int32_t rank, size_t dimensions) {
  size_t count = 0;
  check(hetcomm_layout_parts(layout.handle(), rank, 0, nullptr, &count));
  std::vector<hetcomm_part_t> parts(count);
  check(hetcomm_layout_parts(layout.handle(), rank, count, parts.data(), &count));
  std::vector<PartTuple> result;
  result.reserve(count);
  for (const hetcomm_part_t& part : parts) {
    const auto numbers = [dimensions](const uint64_t* of) { return Sizes(of, of + dimensions); };
    result.emplace_back(part.rank, numbers(part.begin), numbers(part.end), part.offset,
                        numbers(part.strides), part.copy, part.term);
  }
  return result;
}

// The placement along one axis: kind, dimension, split, sizes.
using PlacementTuple = std::tuple<std::string, uint32_t, uint64_t, std::optional<Sizes>>;

LayoutPtr layout_from_mesh(const Sizes& shape, const Sizes& axes, const std::vector<int32_t>& ranks,
                           const std::vector<PlacementTuple>& placements, bool uneven,
                           uint64_t offset, const std::optional<Sizes>& strides) {
  static constexpr const char* kKinds[] = {"replicate",     "shard",   "zigzag",
                                           "strided_shard", "partial", "average"};
  check_dimensions(shape);
  uint64_t count = 1;
  for (const uint64_t axis : axes) {
    if (axis == 0 || count > (uint64_t{1} << 32) / axis) {
      throw nb::value_error("an axis of the mesh has no ranks, or too many");
    }
    count *= axis;
  }
  if (count != ranks.size()) throw nb::value_error("the mesh is not filled with ranks");
  if (placements.size() != axes.size()) {
    throw nb::value_error("there is one placement for each axis of the mesh");
  }
  if (strides && strides->size() != shape.size()) {
    throw nb::value_error("strides has another number of dimensions than the shape");
  }
  std::vector<hetcomm_placement_t> own;
  for (size_t i = 0; i < placements.size(); ++i) {
    const auto& [kind, dimension, split, sizes] = placements[i];
    if (sizes && sizes->size() != axes[i]) {
      throw nb::value_error("sizes has one number for each rank along the axis");
    }
    own.push_back({.kind = number_of(kKinds, std::size(kKinds), kind, "placement"),
                   .dimension = dimension,
                   .split = split,
                   .sizes = sizes ? sizes->data() : nullptr});
  }
  hetcomm_layout_options_t options{};
  options.struct_size = sizeof(options);
  options.uneven = uneven ? HETCOMM_UNEVEN_CEIL : HETCOMM_UNEVEN_REFUSE;
  options.view_offset = offset;
  options.view_strides = strides ? strides->data() : nullptr;
  hetcomm_layout_t* handle = nullptr;
  check(hetcomm_layout_from_mesh(shape.size(), shape.data(), axes.size(), axes.data(), ranks.data(),
                                 own.data(), &options, &handle));
  return std::make_unique<Layout>(handle, shape.size());
}

LayoutPtr layout_from_degrees(uint64_t batch, uint64_t sequence, uint64_t hidden,
                              const std::vector<int32_t>& ranks, uint64_t data, uint64_t context,
                              uint64_t tensor, const std::string& order, bool zigzag) {
  hetcomm_degrees_t degrees{};
  degrees.struct_size = sizeof(degrees);
  degrees.data = data;
  degrees.context = context;
  degrees.tensor = tensor;
  degrees.order = order.c_str();
  degrees.zigzag = zigzag ? 1 : 0;
  static constexpr int32_t kNone = 0;
  hetcomm_layout_t* handle = nullptr;
  check(hetcomm_layout_from_degrees(batch, sequence, hidden, &degrees,
                                    ranks.empty() ? &kNone : ranks.data(), ranks.size(), &handle));
  return std::make_unique<Layout>(handle, 3);
}

// Returns the layout of the remaining ranks. |ranks|[r] is the new number of the former rank r, or
// -1 if it was lost.
LayoutPtr after_loss(const Layout& layout, const std::vector<int32_t>& ranks) {
  hetcomm_layout_t* handle = nullptr;
  check(hetcomm_layout_after_loss(layout.handle(), ranks.data(), ranks.size(), &handle));
  return std::make_unique<Layout>(handle, layout.dimensions());
}

// A tensor to move: source layout, destination layout, source type, destination type.
using TensorTuple = std::tuple<const Layout*, const Layout*, std::string, std::string>;

constexpr const char* kStrategies[] = {
    "auto", "direct", "leader", "gather_p2p_scatter", "sendrecv_allgather", "bsr"};

// A Plan moves tensors between layouts. Requests hold a reference to it, so no execution is in
// progress when it is destroyed.
class Plan {
 public:
  Plan(const Communicator& communicator, const std::vector<TensorTuple>& tensors,
       const std::string& strategy, uint64_t tag, uint64_t slice_bytes, uint64_t outer,
       uint32_t in_flight, uint64_t landing_bytes, bool prove, const std::string& overflow,
       uint32_t weight, uint64_t max_bytes_per_second) {
    static constexpr const char* kOverflows[] = {"saturate", "nan"};
    std::vector<hetcomm_reshard_tensor_t> own;
    own.reserve(tensors.size());
    for (const auto& [source, destination, from, to] : tensors) {
      own.push_back(
          {handle_of(source), handle_of(destination), datatype_named(from), datatype_named(to)});
    }
    hetcomm_reshard_options_t options{};
    options.struct_size = sizeof(options);
    options.strategy = number_of(kStrategies, std::size(kStrategies), strategy, "strategy");
    options.in_flight = in_flight;
    options.tag = tag;
    options.slice_bytes = slice_bytes;
    options.outer = outer;
    options.landing_bytes = landing_bytes;
    options.prove = prove ? 1 : 0;
    options.overflow = number_of(kOverflows, std::size(kOverflows), overflow, "overflow");
    options.weight = weight;
    options.max_bytes_per_second = max_bytes_per_second;
    hetcomm_communicator_t* const handle = communicator.handle();
    hetcomm_status_t status;
    std::string why;
    {
      const nb::gil_scoped_release unlocked;
      status = hetcomm_reshard_create(handle, own.data(), own.size(), &options, &handle_);
      if (status != HETCOMM_OK) why = hetcomm_last_error();
    }
    if (status != HETCOMM_OK) throw StatusError{status, why};
    for (const hetcomm_reshard_tensor_t& tensor : own) {
      types_.push_back({tensor.source_type, tensor.destination_type});
    }
  }
  // Rebuilds the plan in |communicator|. |ranks|[r] is the new number of the former rank r, or -1
  // if it was lost.
  std::unique_ptr<Plan> rebuild(const Communicator& communicator,
                                const std::vector<int32_t>& ranks) const {
    hetcomm_communicator_t* const other = communicator.handle();
    hetcomm_reshard_t* const own = handle();
    const Use use(*this);
    hetcomm_reshard_t* made = nullptr;
    hetcomm_status_t status;
    std::string why;
    {
      const nb::gil_scoped_release unlocked;
      status = hetcomm_reshard_rebuild(own, other, ranks.data(), ranks.size(), &made);
      if (status != HETCOMM_OK) why = hetcomm_last_error();
    }
    if (status != HETCOMM_OK) throw StatusError{status, why};
    return std::unique_ptr<Plan>(new Plan(made, types_));
  }
  ~Plan() {
    const nb::gil_scoped_release unlocked;
    static_cast<void>(hetcomm_reshard_destroy(handle_));
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  hetcomm_reshard_t* handle() const {
    if (handle_ == nullptr) throw nb::value_error("the plan is closed");
    return handle_;
  }
  size_t tensors() const { return types_.size(); }

  // Returns the buffers of |arrays|, or an empty list if |arrays| is empty. |side| is 0 for the
  // source and 1 for the destination. Raises ValueError if the number of arrays is wrong, and
  // TypeError if the type of an array is.
  template <typename Array>
  std::vector<hetcomm_buffer_t> buffers(const std::vector<std::optional<Array>>& arrays,
                                        size_t side) const {
    if (!arrays.empty() && arrays.size() != types_.size()) {
      throw nb::value_error("there is one array, or None, for each tensor");
    }
    std::vector<hetcomm_buffer_t> buffers;
    buffers.reserve(arrays.size());
    for (size_t i = 0; i < arrays.size(); ++i) {
      if (!arrays[i]) {
        buffers.push_back(hetcomm_buffer_host(nullptr, 0));
        continue;
      }
      buffers.push_back(buffer_of(*arrays[i]));
      if (datatype_of(arrays[i]->dtype()) == types_[i][side]) continue;
      throw nb::type_error(
          ("tensor " + std::to_string(i) + ": the array has another data type than the plan")
              .c_str());
    }
    return buffers;
  }

  // Counts the calls that use the handle without holding the GIL. The count itself is guarded by
  // the GIL.
  class Use {
   public:
    explicit Use(const Plan& plan) : plan_(plan) { ++plan_.uses_; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() { --plan_.uses_; }

   private:
    const Plan& plan_;
  };

  uint32_t pending() const {
    uint32_t count = 0;
    check(hetcomm_reshard_pending(handle(), &count));
    return count;
  }
  void cancel() const { check(hetcomm_reshard_cancel(handle())); }
  void refuse(const std::string& reason) const {
    check(hetcomm_reshard_refuse(handle(), reason.c_str()));
  }
  void drain(std::optional<double> timeout) const {
    hetcomm_reshard_t* const own = handle();
    const Use use(*this);
    const uint64_t timeout_ns = nanoseconds(timeout);
    hetcomm_status_t status;
    std::string why;
    {
      const nb::gil_scoped_release unlocked;
      status = hetcomm_reshard_drain(own, timeout_ns);
      if (status != HETCOMM_OK) why = hetcomm_last_error();
    }
    if (status != HETCOMM_OK) throw StatusError{status, why};
  }
  nb::dict facts() const {
    hetcomm_reshard_facts_t facts{};
    facts.struct_size = sizeof(facts);
    check(hetcomm_reshard_facts(handle(), &facts));
    nb::dict made;
    made["strategy"] = kStrategies[facts.strategy];
    made["is_strategy_of_all"] = facts.is_strategy_of_all == 1;
    made["forecast"] = static_cast<double>(facts.forecast_ns) / 1e9;
    made["bytes_sent"] = facts.bytes_sent;
    made["bytes_received"] = facts.bytes_received;
    made["messages_sent"] = facts.messages_sent;
    made["messages_received"] = facts.messages_received;
    made["scratch_bytes"] = facts.scratch_bytes;
    return made;
  }

  void close() {
    if (handle_ == nullptr) return;
    if (uses_ > 0) throw StatusError{HETCOMM_BUSY, "another thread uses the plan"};
    hetcomm_reshard_t* const closing = std::exchange(handle_, nullptr);
    hetcomm_status_t status;
    std::string why;
    {
      const nb::gil_scoped_release unlocked;
      status = hetcomm_reshard_destroy(closing);
      if (status != HETCOMM_OK) why = hetcomm_last_error();
    }
    if (status == HETCOMM_OK) return;
    handle_ = closing;
    throw StatusError{status, why};
  }

 private:
  using Types = std::vector<std::array<hetcomm_datatype_t, 2>>;
  Plan(hetcomm_reshard_t* made, Types types) : handle_(made), types_(std::move(types)) {}

  hetcomm_reshard_t* handle_ = nullptr;
  mutable int uses_ = 0;
  Types types_;
};

std::string described(hetcomm_reshard_t* handle, const std::string& format) {
  static constexpr const char* kFormats[] = {"text", "json", "svg"};
  const int32_t number = number_of(kFormats, std::size(kFormats), format, "format");
  const bool is_picture = number == HETCOMM_PLAN_SVG;
  const std::string text = text_of([&](size_t capacity, char* out, size_t* size) {
    return hetcomm_reshard_describe(handle, is_picture ? HETCOMM_RESHARD_JSON : number, capacity,
                                    out, size);
  });
  if (!is_picture) return text;
  return text_of(
      [&](size_t capacity, char* out, size_t* size) {
        return hetcomm_draft_draw(text.c_str(), HETCOMM_PLAN_SVG, capacity, out, size);
      },
      hetcomm_plan_last_error);
}

}  // namespace

void bind_reshard(nb::module_& module) {
  nb::class_<Layout>(module, "Layout",
                     "Which rank holds which boxes of a tensor, and where in its memory.")
      .def_static("from_parts", &layout_from_parts, "shape"_a, "parts"_a,
                  "padded_shape"_a = nb::none(), "terms"_a = 1, "divisor"_a = 1,
                  "parts: (rank, begin, end, offset, strides or None, copy, term).")
      .def_static("from_mesh", &layout_from_mesh, "shape"_a, "axes"_a, "ranks"_a, "placements"_a,
                  "uneven"_a = false, "offset"_a = 0, "strides"_a = nb::none(),
                  "placements: (kind, dimension, split, sizes or None) for each axis.")
      .def_static("from_degrees", &layout_from_degrees, "batch"_a, "sequence"_a, "hidden"_a,
                  "ranks"_a, "data"_a = 1, "context"_a = 1, "tensor"_a = 1, "order"_a = "dct",
                  "zigzag"_a = false)
      .def("after_loss", &after_loss, "ranks"_a,
           "The layout of the ranks that are left: ranks[r] is what rank r is from now on, or -1.")
      .def(
          "elements",
          [](const Layout& self, int32_t rank) {
            uint64_t elements = 0;
            check(hetcomm_layout_elements(self.handle(), rank, &elements));
            return elements;
          },
          "rank"_a, "The elements that the rank's array has at least.")
      .def(
          "parts",
          [](const Layout& self, int32_t rank) { return parts_of(self, rank, self.dimensions()); },
          "rank"_a = -1, "The parts of a rank, or of all (-1), as from_parts takes them.")
      .def(
          "json",
          [](const Layout& self) {
            return text_of([&](size_t capacity, char* text, size_t* size) {
              return hetcomm_layout_json(self.handle(), capacity, text, size);
            });
          },
          "The layout as a JSON document, for libhetcomm_plan and for programs.")
      .def("__str__", [](const Layout& self) {
        return text_of([&](size_t capacity, char* text, size_t* size) {
          return hetcomm_layout_describe(self.handle(), capacity, text, size);
        });
      });
  nb::class_<Plan>(module, "Plan", "What this rank does to move tensors between layouts.")
      .def(nb::init<const Communicator&, const std::vector<TensorTuple>&, const std::string&,
                    uint64_t, uint64_t, uint64_t, uint32_t, uint64_t, bool, const std::string&,
                    uint32_t, uint64_t>(),
           "communicator"_a, "tensors"_a, "strategy"_a = "auto", "tag"_a = 0, "slice_bytes"_a = 0,
           "outer"_a = 0, "in_flight"_a = 1, "landing_bytes"_a = 0, "prove"_a = false,
           "overflow"_a = "saturate", "weight"_a = 0, "max_bytes_per_second"_a = 0,
           nb::keep_alive<1, 2>())
      .def(
          "start",
          [](const Plan& self, const std::vector<std::optional<Input>>& sources,
             const std::vector<std::optional<Output>>& destinations, std::optional<double> timeout,
             uint64_t step, uint64_t micro_batch) {
            hetcomm_operation_options_t options{};
            options.struct_size = sizeof(options);
            options.timeout_ns = nanoseconds(timeout);
            options.step = step;
            options.micro_batch = micro_batch;
            options.stream = stream_of(sources, destinations);
            hetcomm_reshard_t* const handle = self.handle();
            const Plan::Use use(self);
            const std::vector<hetcomm_buffer_t> from = self.buffers(sources, 0);
            const std::vector<hetcomm_buffer_t> to = self.buffers(destinations, 1);
            return start(keep(sources, destinations), [&](hetcomm_request_t** request) {
              return hetcomm_reshard_start(handle, from.empty() ? nullptr : from.data(),
                                           to.empty() ? nullptr : to.data(), &options, request);
            });
          },
          "sources"_a.noconvert(), "destinations"_a.noconvert(), "timeout"_a = nb::none(),
          "step"_a = 0, "micro_batch"_a = 0, nb::keep_alive<0, 1>(),
          "An array, or None where this rank holds nothing, for each tensor.")
      .def(
          "describe",
          [](const Plan& self, const std::string& format) {
            hetcomm_reshard_t* const handle = self.handle();
            const Plan::Use use(self);
            return described(handle, format);
          },
          "format"_a = "text", "The plan of all ranks: \"text\", \"json\" or \"svg\".")
      .def("rebuild", &Plan::rebuild, "communicator"_a, "ranks"_a, nb::keep_alive<0, 2>(),
           "The plan again where ranks were lost: ranks[r] is what rank r is from now on, or -1.")
      .def("refuse", &Plan::refuse, "reason"_a,
           "The next execution of this rank will not take place: others end with MISMATCH.")
      .def("cancel", &Plan::cancel, "Ends the executions under way here with CANCELLED.")
      .def("drain", &Plan::drain, "timeout"_a = nb::none(),
           "Waits until no execution is under way here.")
      .def_prop_ro("pending", &Plan::pending, "The number of executions under way here.")
      .def("facts", &Plan::facts, "Strategy, forecast, and what this rank sends and receives.")
      .def("__len__", &Plan::tensors)
      .def("close", &Plan::close, "Executions of others that need this rank end with ABORTED.");
}

}  // namespace hetcomm_python
