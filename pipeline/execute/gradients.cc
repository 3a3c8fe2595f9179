#include "pipeline/execute/gradients.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pipeline/execute/agreement.h"
#include "pipeline/schedule/faults.h"
#include "src/base/element_type.h"

namespace hetcomm::pipeline {
namespace {

constexpr uint32_t kMaxChunks = 64;

// Returns a number that identifies a stage among all pipelines. The ranks of a stage hold an item
// in one layout.
uint32_t holder_of(uint32_t pipeline, uint32_t stage) { return pipeline << 14 | stage; }

bool holds(const PipelinePlan& plan, uint32_t pipeline, uint32_t stage, uint32_t item) {
  const PlanStage& own = plan.pipelines[pipeline].stages[stage];
  if (own.items_begin <= item && item < own.items_end) return true;
  return std::any_of(plan.shared.begin(), plan.shared.end(), [&](const SharedItem& each) {
    return each.item == item &&
           std::find(each.holders.begin(), each.holders.end(),
                     SharedItem::Holder{pipeline, stage}) != each.holders.end();
  });
}

// Words is a list of 64-bit numbers that are appended, and read in the same order.
class Words {
 public:
  Words() = default;
  explicit Words(const uint64_t* words, size_t count) : words_(words, words + count) {}
  void put(uint64_t word) { words_.push_back(word); }
  uint64_t get() { return at_ < words_.size() ? words_[at_++] : 0; }
  bool is_at_end() const { return at_ >= words_.size(); }
  const std::vector<uint64_t>& all() const { return words_; }

 private:
  std::vector<uint64_t> words_;
  size_t at_ = 0;
};

void put(Words& words, const HeldGradient& gradient) {
  words.put(gradient.item);
  words.put(gradient.index);
  words.put(gradient.holder);
  words.put(static_cast<uint64_t>(gradient.type));
  words.put(gradient.terms);
  words.put(gradient.shape.size());
  for (const uint64_t length : gradient.shape) words.put(length);
  words.put(gradient.parts.size());
  for (const GradientPart& part : gradient.parts) {
    words.put(part.copy);
    words.put(part.term);
    for (size_t d = 0; d < gradient.shape.size(); ++d) {
      words.put(part.box.begin[d]);
      words.put(part.box.end[d]);
    }
  }
}

HeldGradient take(Words& words) {
  HeldGradient gradient;
  gradient.item = static_cast<uint32_t>(words.get());
  gradient.index = static_cast<uint32_t>(words.get());
  gradient.holder = static_cast<uint32_t>(words.get());
  gradient.type = static_cast<int32_t>(words.get());
  gradient.terms = static_cast<uint32_t>(words.get());
  gradient.shape.resize(words.get());
  for (uint64_t& length : gradient.shape) length = words.get();
  gradient.parts.resize(words.get());
  for (GradientPart& part : gradient.parts) {
    part.copy = static_cast<uint32_t>(words.get());
    part.term = static_cast<uint32_t>(words.get());
    part.box = reshard::whole_of(gradient.shape);
    for (size_t d = 0; d < gradient.shape.size(); ++d) {
      part.box.begin[d] = words.get();
      part.box.end[d] = words.get();
    }
  }
  return gradient;
}

// Reads the parts of |rank| from |layout|.
Result<HeldGradient> read_layout(const hetcomm_layout_t* layout, uint32_t rank) {
  HeldGradient held;
  hetcomm_layout_facts_t facts{};
  facts.struct_size = sizeof(facts);
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_layout_facts(layout, &facts)));
  if (facts.divisor != 1) return invalid("layout: its sum is divided; gradients are added alone");
  const size_t dimensions = facts.dimensions;
  held.shape.assign(facts.shape, facts.shape + dimensions);
  held.terms = facts.terms;
  size_t count = 0;
  HETCOMM_RETURN_IF_ERROR(
      of_call(hetcomm_layout_parts(layout, static_cast<int32_t>(rank), 0, nullptr, &count)));
  std::vector<hetcomm_part_t> parts(count);
  HETCOMM_RETURN_IF_ERROR(of_call(
      hetcomm_layout_parts(layout, static_cast<int32_t>(rank), count, parts.data(), &count)));
  for (const hetcomm_part_t& each : parts) {
    GradientPart& part = held.parts.emplace_back();
    part.copy = each.copy;
    part.term = each.term;
    part.offset = each.offset;
    part.box = reshard::whole_of(held.shape);
    std::copy(each.begin, each.begin + dimensions, part.box.begin.begin());
    std::copy(each.end, each.end + dimensions, part.box.end.begin());
    const bool is_dense = std::all_of(each.strides, each.strides + dimensions,
                                      [](uint64_t stride) { return stride == 0; });
    uint64_t stride = 1;
    for (size_t d = dimensions; d > 0; --d) {
      part.strides[d - 1] = is_dense ? stride : each.strides[d - 1];
      stride *= part.box.extent(d - 1);
    }
    // Removes the padding, which belongs to no rank.
    for (size_t d = 0; d < dimensions; ++d) {
      part.box.end[d] = std::min(part.box.end[d], held.shape[d]);
      part.box.begin[d] = std::min(part.box.begin[d], part.box.end[d]);
    }
    if (part.box.is_empty()) held.parts.pop_back();
  }
  return held;
}

// Returns the number of elements from the beginning of the memory up to and including the last one.
uint64_t elements_needed(const HeldGradient& gradient) {
  uint64_t needed = 0;
  for (const GradientPart& part : gradient.parts) {
    uint64_t last = part.offset;
    for (size_t d = 0; d < gradient.shape.size(); ++d) {
      last += (part.box.extent(d) - 1) * part.strides[d];
    }
    needed = std::max(needed, last + 1);
  }
  return needed;
}

uint64_t element_bytes(int32_t type) { return size_of(static_cast<ElementType>(type)); }

// Resolves a plain pointer to its memory, and checks a memory handle's bounds.
Status find_memory(hetcomm_context_t* context, hetcomm_buffer_t& buffer) {
  if (buffer.length == 0) return {};
  if (buffer.memory == nullptr) {
    if (buffer.offset == 0) return invalid("the buffer is at a null pointer");
    return of_call(hetcomm_buffer_pointer(context, reinterpret_cast<const void*>(buffer.offset),
                                          buffer.length, &buffer));
  }
  uint64_t size = 0;
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_memory_size(buffer.memory, &size)));
  if (buffer.offset <= size && buffer.length <= size - buffer.offset) return {};
  return invalid(fmt::format("the buffer ends past its memory of {} bytes", size));
}

hetcomm_buffer_t part_of(const hetcomm_buffer_t& buffer, uint64_t offset, uint64_t length) {
  hetcomm_buffer_t part = buffer;
  part.offset += offset;
  part.length = length;
  return part;
}

}  // namespace

Status GradientSums::give(const hetcomm_pipeline_gradient_t* gradients, size_t count,
                          hetcomm_context_t* context, const PipelinePlan& plan,
                          const Program& program) {
  of_ = &plan;
  if (count > 0 && program.chunks.size() > kMaxChunks) {
    return invalid(fmt::format("gradients: rank {} has {} stages, and {} are the most",
                               program.rank, program.chunks.size(), kMaxChunks));
  }
  for (size_t i = 0; i < count; ++i) {
    const hetcomm_pipeline_gradient_t& each = gradients[i];
    const auto fail = [&](const std::string& why) {
      return invalid(fmt::format("gradients[{}]: {}", i, why));
    };
    if (each.layout == nullptr) return fail("layout is null");
    if (each.type <= HETCOMM_BOOL || each.type > HETCOMM_COMPLEX128) {
      return fail("there is no such type of gradients");
    }
    Result<HeldGradient> held = read_layout(each.layout, program.rank);
    if (!held.ok()) return held.status().annotate(fmt::format("gradients[{}]", i));
    Given& own = given_.emplace_back();
    own.held = std::move(held).value();
    own.held.item = each.item;
    own.held.index = each.index;
    own.held.type = each.type;
    own.buffer = each.buffer;
    for (uint32_t chunk = 0; chunk < program.chunks.size(); ++chunk) {
      const uint32_t stage = program.chunks[chunk].stage;
      if (!holds(plan, program.pipeline, stage, each.item)) continue;
      if (own.chunks == 0) own.held.holder = holder_of(program.pipeline, stage);
      own.chunks |= uint64_t{1} << chunk;
    }
    if (own.chunks == 0) {
      return fail(fmt::format("rank {} does not hold item {}", program.rank, each.item));
    }
    const bool is_twice = std::any_of(given_.begin(), given_.end() - 1, [&](const Given& other) {
      return other.held.item == each.item && other.held.index == each.index;
    });
    if (is_twice)
      return fail(fmt::format("gradient {} of item {} is there twice", each.index, each.item));
    const uint64_t needed = elements_needed(own.held) * element_bytes(each.type);
    if (each.buffer.length < needed) {
      return fail(fmt::format("the buffer has {} bytes, and the layout needs {}",
                              each.buffer.length, needed));
    }
    HETCOMM_RETURN_IF_ERROR(
        find_memory(context, own.buffer).annotate(fmt::format("gradients[{}]", i)));
  }
  return {};
}

Status GradientSums::open(const ChannelPlace& place, uint64_t timeout_ns) {
  std::vector<std::vector<HeldGradient>> held;
  HETCOMM_RETURN_IF_ERROR(exchange(place, timeout_ns, held));
  HETCOMM_RETURN_IF_ERROR(check_complete(held));
  int32_t rank = 0;
  int32_t size = 0;
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_communicator_rank(place.communicator, &rank, &size)));
  // Offsets were not exchanged, so this rank's entry is replaced by its own list.
  auto& own = held[static_cast<size_t>(rank)];
  own.clear();
  for (const Given& each : given_) own.push_back(each.held);
  Result<SumPlan> planned = plan_sums(held, static_cast<uint32_t>(rank));
  if (!planned.ok()) return planned.status();
  plan_ = std::move(planned).value();
  HETCOMM_RETURN_IF_ERROR(split(place));
  buckets_.resize(plan_.buckets.size());
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    bucket.plan = &plan_.buckets[i];
    for (const SumPiece& piece : bucket.plan->pieces)
      bucket.chunks |= given_[piece.gradient].chunks;
    if (!is_dense(*bucket.plan)) {
      bucket.packed.resize(bucket.plan->elements * element_bytes(bucket.plan->type));
      buffer_bytes_ += bucket.packed.size();
    }
  }
  return {};
}

// Fails if a rank that holds an item does not specify all gradients that others specify for it.
Status GradientSums::check_complete(const std::vector<std::vector<HeldGradient>>& held) const {
  std::map<std::pair<uint32_t, uint32_t>, std::set<uint32_t>> givers;  // keyed by item and index
  for (uint32_t rank = 0; rank < held.size(); ++rank) {
    for (const HeldGradient& each : held[rank]) givers[{each.item, each.index}].insert(rank);
  }
  for (const auto& [tensor, ranks] : givers) {
    for (uint32_t pipeline = 0; pipeline < of_->pipelines.size(); ++pipeline) {
      const std::vector<PlanStage>& stages = of_->pipelines[pipeline].stages;
      for (uint32_t stage = 0; stage < stages.size(); ++stage) {
        if (!holds(*of_, pipeline, stage, tensor.first)) continue;
        for (const uint32_t rank : stages[stage].ranks) {
          if (ranks.contains(rank)) continue;
          return invalid(fmt::format("rank {} holds item {}, and does not give gradient {} of it",
                                     rank, tensor.first, tensor.second));
        }
      }
    }
  }
  return {};
}

// Collects the gradients that each rank holds.
Status GradientSums::exchange(const ChannelPlace& place, uint64_t timeout_ns,
                              std::vector<std::vector<HeldGradient>>& held) const {
  Words own;
  for (const Given& each : given_) put(own, each.held);
  Result<std::vector<std::vector<uint64_t>>> all =
      gather(place.communicator, own.all(), timeout_ns);
  if (!all.ok()) return all.status();
  for (const std::vector<uint64_t>& told : all.value()) {
    Words words(told.data(), told.size());
    std::vector<HeldGradient>& of_rank = held.emplace_back();
    while (!words.is_at_end()) of_rank.push_back(take(words));
  }
  return {};
}

// Creates the communicators of the sets, in rounds in which each rank is in at most one set.
Status GradientSums::split(const ChannelPlace& place) {
  int32_t rank = 0;
  int32_t size = 0;
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_communicator_rank(place.communicator, &rank, &size)));
  const auto own = static_cast<uint32_t>(rank);
  std::vector<std::vector<size_t>> rounds;
  std::vector<std::vector<bool>> taken;  // indexed by round and rank
  for (size_t i = 0; i < plan_.sets.size(); ++i) {
    size_t round = 0;
    const auto is_free = [&](uint32_t each) { return !taken[round][each]; };
    while (round < rounds.size() &&
           !std::all_of(plan_.sets[i].begin(), plan_.sets[i].end(), is_free)) {
      ++round;
    }
    if (round == rounds.size()) {
      rounds.emplace_back();
      taken.emplace_back(static_cast<size_t>(size));
    }
    rounds[round].push_back(i);
    for (const uint32_t each : plan_.sets[i]) taken[round][each] = true;
  }
  for (const std::vector<size_t>& round : rounds) {
    int32_t color = -1;
    int32_t key = 0;  // this rank's index in the set
    for (const size_t i : round) {
      const auto found = std::find(plan_.sets[i].begin(), plan_.sets[i].end(), own);
      if (found == plan_.sets[i].end()) continue;
      color = static_cast<int32_t>(i);
      key = static_cast<int32_t>(found - plan_.sets[i].begin());
    }
    hetcomm_communicator_t* made = nullptr;
    HETCOMM_RETURN_IF_ERROR(
        of_call(hetcomm_communicator_split(place.communicator, color, key, &made)));
    if (made == nullptr) continue;
    Set& set = sets_.emplace_back();
    set.communicator.reset(made);
    for (size_t i = 0; i < plan_.buckets.size(); ++i) {
      if (plan_.buckets[i].set == static_cast<size_t>(color)) set.buckets.push_back(i);
    }
  }
  return {};
}

// Returns whether the sum can be formed in place. The bucket must be one large piece without gaps,
// whose result this rank keeps, and that no other set of this rank uses.
bool GradientSums::is_dense(const SumBucket& bucket) const {
  const SumPiece& piece = bucket.pieces.front();
  if (bucket.pieces.size() != 1 || !piece.keeps_result || !piece.is_in_one_set) return false;
  if (bucket.elements * element_bytes(bucket.type) < kLargePieceBytes) return false;
  uint64_t stride = 1;
  for (size_t d = piece.box.dimensions; d > 0; --d) {
    if (piece.box.extent(d - 1) > 1 && piece.strides[d - 1] != stride) return false;
    stride *= piece.box.extent(d - 1);
  }
  return true;
}

void GradientSums::begin() {
  finished_ = 0;
  for (Set& each : sets_) each.started = 0;
}

Status GradientSums::finish_chunk(uint32_t chunk, const RunLimits& limits) {
  finished_ |= uint64_t{1} << chunk;
  return start_ready(limits);
}

Status GradientSums::start_ready(const RunLimits& limits) {
  for (Set& set : sets_) {
    for (; set.started < set.buckets.size(); ++set.started) {
      Bucket& bucket = buckets_[set.buckets[set.started]];
      if ((bucket.chunks & ~finished_) != 0) break;
      HETCOMM_RETURN_IF_ERROR(annotated(start(set, bucket, limits), [&] {
        return fmt::format("adding the gradients of item {}", bucket.plan->item);
      }));
    }
  }
  return {};
}

// Names the ranks of the bucket's set, since error texts of its communicator number them from 0.
std::string GradientSums::describe(const Bucket& bucket) const {
  return fmt::format("adding the gradients of item {} over the ranks {}, which count from 0",
                     bucket.plan->item, fmt::join(plan_.sets[bucket.plan->set], ", "));
}

Status GradientSums::start(Set& set, Bucket& bucket, const RunLimits& limits) {
  const uint64_t size = element_bytes(bucket.plan->type);
  hetcomm_buffer_t data = hetcomm_buffer_host(bucket.packed.data(), bucket.packed.size());
  if (bucket.packed.empty()) {
    const SumPiece& piece = bucket.plan->pieces.front();
    data =
        part_of(given_[piece.gradient].buffer, piece.offset * size, bucket.plan->elements * size);
  } else {
    std::byte* at = bucket.packed.data();
    for (const SumPiece& piece : bucket.plan->pieces) {
      HETCOMM_RETURN_IF_ERROR(move_piece(piece, at, true));
      at += piece.box.elements() * size;
    }
  }
  const Result<uint64_t> left_ns = limits.left_ns();
  if (!left_ns.ok()) return left_ns.status();
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = left_ns.value();
  return of_call(hetcomm_allreduce(set.communicator.get(), data, data, bucket.plan->type,
                                   HETCOMM_REDUCE_SUM, &options, &bucket.request));
}

// Copies a piece from the rank's memory to its packed form, or back.
Status GradientSums::move_piece(const SumPiece& piece, std::byte* packed, bool to_packed) const {
  const Given& given = given_[piece.gradient];
  const uint64_t size = element_bytes(given.held.type);
  const size_t dimensions = piece.box.dimensions;
  // A run covers the innermost dimensions that are contiguous.
  uint64_t run = 1;
  size_t outer = dimensions;
  while (outer > 0 && (piece.box.extent(outer - 1) == 1 || piece.strides[outer - 1] == run)) {
    run *= piece.box.extent(--outer);
  }
  const uint64_t runs = piece.box.elements() / run;
  reshard::Numbers at{};
  for (uint64_t i = 0; i < runs; ++i) {
    uint64_t element = piece.offset;
    for (size_t d = 0; d < outer; ++d) element += at[d] * piece.strides[d];
    const uint64_t offset = given.buffer.offset + element * size;
    if (given.buffer.memory == nullptr) {
      auto* const own = reinterpret_cast<std::byte*>(offset);
      std::memcpy(to_packed ? packed : own, to_packed ? own : packed, run * size);
    } else {
      HETCOMM_RETURN_IF_ERROR(of_call(
          to_packed ? hetcomm_memory_read(given.buffer.memory, offset, packed, run * size)
                    : hetcomm_memory_write(given.buffer.memory, offset, packed, run * size)));
    }
    packed += run * size;
    for (size_t d = outer; d > 0; --d) {
      if (++at[d - 1] < piece.box.extent(d - 1)) break;
      at[d - 1] = 0;
    }
  }
  return {};
}

Status GradientSums::settle(const RunLimits& limits, const std::function<Status()>& check) {
  finished_ = UINT64_MAX;
  HETCOMM_RETURN_IF_ERROR(start_ready(limits));
  // check() also detects from the pipeline's own communicator that the run has ended.
  const Patience patience{.wait_ns = limits.patience.wait_ns, .ask = check};
  for (Bucket& bucket : buckets_) {
    if (bucket.request == nullptr) continue;
    HETCOMM_RETURN_IF_ERROR(
        annotated(wait_patiently(patience, bucket.request), [&] { return describe(bucket); }));
    const std::byte* at = bucket.packed.data();
    for (const SumPiece& piece : bucket.plan->pieces) {
      if (bucket.packed.empty()) break;
      if (piece.keeps_result) {
        HETCOMM_RETURN_IF_ERROR(move_piece(piece, const_cast<std::byte*>(at), false));
      }
      at += piece.box.elements() * element_bytes(bucket.plan->type);
    }
  }
  return {};
}

Status GradientSums::measure(GradientNorm& norm) const {
  constexpr uint64_t kChunkBytes = uint64_t{1} << 20;
  std::vector<std::byte> copy;
  for (const SumPiece& whole : plan_.counted) {
    const int32_t type = given_[whole.gradient].held.type;
    const uint64_t size = element_bytes(type);
    const size_t dimensions = whole.box.dimensions;
    // Copies slabs along the first dimension that is longer than 1. A slab has at most kChunkBytes,
    // but at least one row.
    size_t along = 0;
    while (along + 1 < dimensions && whole.box.extent(along) == 1) ++along;
    const uint64_t rows = dimensions > 0 ? whole.box.extent(along) : 1;
    const uint64_t row_bytes = whole.box.elements() / rows * size;
    const uint64_t step = std::max<uint64_t>(1, kChunkBytes / row_bytes);
    for (uint64_t first = 0; first < rows; first += step) {
      SumPiece slab = whole;
      if (dimensions > 0) {
        slab.box.begin[along] = whole.box.begin[along] + first;
        slab.box.end[along] = std::min(whole.box.end[along], slab.box.begin[along] + step);
        slab.offset += first * whole.strides[along];
      }
      copy.resize(slab.box.elements() * size);
      HETCOMM_RETURN_IF_ERROR(move_piece(slab, copy.data(), true));
      norm.add(copy.data(), slab.box.elements(), type);
    }
  }
  return {};
}

void GradientSums::drain() {
  for (Bucket& bucket : buckets_) pipeline::drain(bucket.request);
}

}  // namespace hetcomm::pipeline
