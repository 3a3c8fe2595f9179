// The terms of redistributions, on which the ranks must agree, and the reports about them, over
// every transport:
//
//   * plans that differ in one term end with MISMATCH on both ranks, long before the deadline; each
//     term has a row in a table
//   * options that concern only one rank may differ
//   * a third rank, whose plan matches, ends with ABORTED and the reason
//   * a rank whose peer lacks the plan ends with MISMATCH at the deadline, and its text lists the
//     peer's plans, even if the execution has not started
//   * a stall report names the ranks that the operation waits for, and their plans
//   * the facts about a plan match a count over its elements, and its forecast equals that from the
//     link model
#include <algorithm>
#include <array>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/capi/job.h"
#include "tests/support/temporary_folder.h"

namespace hetcomm_test {
namespace {

constexpr uint64_t kElements = 1000;

std::vector<CapiCase> cases() {
  std::vector<CapiCase> few;
  for (CapiCase& each : plain_cases()) {
    if (!each.alone()) few.push_back(std::move(each));
  }
  return few;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string name_of(int32_t rank) { return "rank " + std::to_string(rank); }

template <typename Body>
uint64_t time_of(Body&& body) {
  const uint64_t start_ns = clock_ns();
  body();
  return clock_ns() - start_ns;
}

// Returns the limit for ends that do not wait for a deadline. |control_ns| is the time for a
// meeting and a successful execution.
uint64_t soon(uint64_t control_ns) { return kSec + 10 * control_ns; }

// --- plans -------------------------------------------------------------------------

// A source or a destination.
struct Side {
  std::vector<hetcomm_part_t> parts;
  std::vector<uint64_t> padded_shape = {};
  uint32_t terms = 1;
  uint32_t divisor = 1;
};

struct Tensor {
  Side source;
  Side destination;
  hetcomm_datatype_t source_type = HETCOMM_UINT32;
  hetcomm_datatype_t destination_type = HETCOMM_UINT32;
  std::vector<uint64_t> shape = {kElements};
};

// The arguments of a rank for hetcomm_reshard_create().
struct Draft {
  std::vector<Tensor> tensors;
  hetcomm_reshard_options_t options;
};

hetcomm_part_t box(int32_t rank, uint64_t begin, uint64_t end, uint32_t copy = 0, uint32_t term = 0,
                   uint64_t offset = 0) {
  hetcomm_part_t part{};
  part.rank = rank;
  part.copy = copy;
  part.term = term;
  part.begin[0] = begin;
  part.end[0] = end;
  part.offset = offset;
  return part;
}

// A whole tensor moves from one rank to other ranks.
Tensor whole(int32_t from, const std::vector<int32_t>& to, uint64_t elements = kElements) {
  Tensor tensor;
  tensor.shape = {elements};
  tensor.source.parts = {box(from, 0, elements)};
  for (const int32_t rank : to) {
    const auto copy = static_cast<uint32_t>(tensor.destination.parts.size());
    tensor.destination.parts.push_back(box(rank, 0, elements, copy));
  }
  return tensor;
}

void set_types(Tensor& tensor, hetcomm_datatype_t source, hetcomm_datatype_t destination) {
  tensor.source_type = source;
  tensor.destination_type = destination;
}

// The strategy sends one message from each holder to each receiver, whatever the links.
Draft draft_of(std::vector<Tensor> tensors, uint64_t tag) {
  Draft draft{.tensors = std::move(tensors), .options = {}};
  draft.options.struct_size = sizeof(draft.options);
  draft.options.strategy = HETCOMM_STRATEGY_DIRECT;
  draft.options.tag = tag;
  return draft;
}

hetcomm_layout_t* layout_of(const std::vector<uint64_t>& shape, const Side& side) {
  hetcomm_layout_options_t options{};
  options.struct_size = sizeof(options);
  options.padded_shape = side.padded_shape.empty() ? nullptr : side.padded_shape.data();
  options.terms = side.terms;
  options.divisor = side.divisor;
  hetcomm_layout_t* layout = nullptr;
  EXPECT_EQ(hetcomm_layout_from_parts(shape.size(), shape.data(), side.parts.data(),
                                      side.parts.size(), &options, &layout),
            HETCOMM_OK)
      << hetcomm_last_error();
  return layout;
}

// This rank's share of a plan, with zeroed memory for it.
class Plan {
 public:
  Plan(Member& me, const Draft& draft) {
    std::vector<hetcomm_layout_t*> layouts;
    std::vector<hetcomm_reshard_tensor_t> tensors;
    for (const Tensor& tensor : draft.tensors) {
      hetcomm_layout_t* const source = layout_of(tensor.shape, tensor.source);
      hetcomm_layout_t* const destination = layout_of(tensor.shape, tensor.destination);
      layouts.insert(layouts.end(), {source, destination});
      tensors.push_back({source, destination, tensor.source_type, tensor.destination_type});
      sources_.push_back(buffer_for(source, me.rank()));
      destinations_.push_back(buffer_for(destination, me.rank()));
    }
    EXPECT_EQ(hetcomm_reshard_create(me.communicator(), tensors.data(), tensors.size(),
                                     &draft.options, &plan_),
              HETCOMM_OK)
        << hetcomm_last_error();
    for (hetcomm_layout_t* const layout : layouts) {
      EXPECT_EQ(hetcomm_layout_destroy(layout), HETCOMM_OK);
    }
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() { EXPECT_EQ(hetcomm_reshard_destroy(plan_), HETCOMM_OK) << hetcomm_last_error(); }

  hetcomm_request_t* start(const hetcomm_operation_options_t& options) const {
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(
        hetcomm_reshard_start(plan_, sources_.data(), destinations_.data(), &options, &request),
        HETCOMM_OK)
        << hetcomm_last_error();
    return request;
  }
  // |timeout_ns| 0: the default.
  Outcome execute(uint64_t timeout_ns = 0) const { return finish(start(with_timeout(timeout_ns))); }
  void expect_works() const {
    const Outcome outcome = execute();
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
  }
  hetcomm_reshard_facts_t facts() const {
    hetcomm_reshard_facts_t facts{};
    facts.struct_size = sizeof(facts);
    EXPECT_EQ(hetcomm_reshard_facts(plan_, &facts), HETCOMM_OK) << hetcomm_last_error();
    return facts;
  }

 private:
  // The buffer has room for elements of the longest type.
  hetcomm_buffer_t buffer_for(const hetcomm_layout_t* layout, int32_t rank) {
    uint64_t elements = 0;
    EXPECT_EQ(hetcomm_layout_elements(layout, rank, &elements), HETCOMM_OK);
    std::vector<std::byte>& memory = memories_.emplace_back(elements * sizeof(uint64_t));
    return hetcomm_buffer_host(memory.data(), memory.size());
  }

  std::vector<std::vector<std::byte>> memories_;
  std::vector<hetcomm_buffer_t> sources_;
  std::vector<hetcomm_buffer_t> destinations_;
  hetcomm_reshard_t* plan_ = nullptr;
};

// Meets the other ranks and executes |plan|, which is identical on all ranks. Returns the total
// time.
uint64_t control_of(Member& me, const Plan& plan) {
  return time_of([&] {
    me.meet();
    plan.expect_works();
  });
}

// --- one term differs -----------------------------------------------------------------

// A term in which plans may differ. set_up() prepares a draft on all ranks, and change() changes
// only that term.
struct Term {
  const char* name;
  void (*set_up)(Draft& draft);
  void (*change)(Draft& draft);
};

void as_it_is(Draft&) {}

// Terms of tensors and layouts apply to this tensor. In every plan the first tensor moves from rank
// 0 to rank 1, so that both ranks have a message.
Tensor& subject(Draft& draft) { return draft.tensors[1]; }

// The source's box is in the padded shape.
void pad(Draft& draft) { subject(draft).source.padded_shape = {kElements + 10}; }

// Turns the source into a sum, with one term on each rank.
void make_sum(Draft& draft) {
  Side& source = subject(draft).source;
  source.parts = {box(0, 0, kElements, 0, 0), box(1, 0, kElements, 0, 1)};
  source.terms = 2;
}

// Rank 1 also holds some elements of the source.
void add_copy(Draft& draft) { subject(draft).source.parts.push_back(box(1, 10, 500, 1)); }

// A tensor without elements needs no boxes.
void add_empty(Draft& draft) {
  Tensor empty;
  empty.shape = {0};
  draft.tensors.push_back(empty);
}

void cut_in_two(Side& side) {
  const int32_t rank = side.parts[0].rank;
  side.parts = {box(rank, 0, 500), box(rank, 500, kElements, 0, 0, 500)};
}

// Converted elements are sent in the destination's type, so messages are unchanged.
constexpr Term kSourceType = {
    "type of the source",
    [](Draft& draft) { set_types(subject(draft), HETCOMM_FLOAT16, HETCOMM_FLOAT32); },
    [](Draft& draft) { subject(draft).source_type = HETCOMM_BFLOAT16; }};
constexpr Term kInFlight = {"in_flight", as_it_is,
                            [](Draft& draft) { draft.options.in_flight = 2; }};
constexpr Term kOverflow = {
    "overflow",
    [](Draft& draft) { set_types(subject(draft), HETCOMM_FLOAT32, HETCOMM_FLOAT8_E4M3FN); },
    [](Draft& draft) { draft.options.overflow = HETCOMM_OVERFLOW_NAN; }};

constexpr Term kTerms[] = {
    kSourceType,
    {"type of the destination",
     [](Draft& draft) { set_types(subject(draft), HETCOMM_FLOAT32, HETCOMM_FLOAT16); },
     [](Draft& draft) { subject(draft).destination_type = HETCOMM_BFLOAT16; }},
    {"strategy", as_it_is, [](Draft& draft) { draft.options.strategy = HETCOMM_STRATEGY_BSR; }},
    {"outer", as_it_is, [](Draft& draft) { draft.options.outer = 1; }},
    // Both sizes exceed the length of all messages.
    {"slice_bytes", [](Draft& draft) { draft.options.slice_bytes = 1 << 20; },
     [](Draft& draft) { draft.options.slice_bytes = 2 << 20; }},
    kInFlight,
    kOverflow,
    {"number of tensors", as_it_is,
     [](Draft& draft) { draft.tensors.push_back(draft.tensors.back()); }},
    {"order of tensors", as_it_is,
     [](Draft& draft) { std::swap(draft.tensors[0], draft.tensors[1]); }},
    // Boxes extend past both shapes.
    {"shape",
     [](Draft& draft) {
       Tensor& tensor = subject(draft);
       tensor.shape = {kElements - 10};
       tensor.source.padded_shape = tensor.destination.padded_shape = {kElements};
     },
     [](Draft& draft) { subject(draft).shape = {kElements - 20}; }},
    // Apart from the dimension counts, both layouts are the same words in the same order.
    {"number of dimensions",
     [](Draft& draft) {
       add_empty(draft);
       Tensor& empty = draft.tensors.back();
       empty.source.padded_shape = empty.destination.padded_shape = {0};
     },
     [](Draft& draft) {
       draft.tensors.back() = Tensor{};
       draft.tensors.back().shape = {0, 1};
     }},
    {"padding", as_it_is, pad},
    {"extent of the padding", pad, [](Draft& draft) { ++subject(draft).source.padded_shape[0]; }},
    {"divisor", make_sum, [](Draft& draft) { subject(draft).source.divisor = 2; }},
    {"number of terms",
     [](Draft& draft) {
       add_empty(draft);
       draft.tensors.back().source.terms = 2;
     },
     [](Draft& draft) { draft.tensors.back().source.terms = 3; }},
    {"terms of boxes", make_sum,
     [](Draft& draft) {
       std::vector<hetcomm_part_t>& parts = subject(draft).source.parts;
       std::swap(parts[0].term, parts[1].term);
     }},
    {"copy of a box", add_copy, [](Draft& draft) { ++subject(draft).source.parts[1].copy; }},
    {"beginning of a box", add_copy,
     [](Draft& draft) { ++subject(draft).source.parts[1].begin[0]; }},
    {"end of a box", add_copy, [](Draft& draft) { ++subject(draft).source.parts[1].end[0]; }},
    {"rank of a box", as_it_is, [](Draft& draft) { subject(draft).source.parts[0].rank = 1; }},
    {"boxes of the source", as_it_is, [](Draft& draft) { cut_in_two(subject(draft).source); }},
    {"boxes of the destination", as_it_is,
     [](Draft& draft) { cut_in_two(subject(draft).destination); }},
};

Draft draft_of(const Term& term, std::vector<Tensor> tensors, bool is_changed, uint64_t tag) {
  Draft draft = draft_of(std::move(tensors), tag);
  set_types(subject(draft), HETCOMM_FLOAT32, HETCOMM_FLOAT32);
  term.set_up(draft);
  if (is_changed) term.change(draft);
  return draft;
}

// Returns the two hashes in the text of a mismatch. They are equal if the text has none.
std::array<std::string, 2> hashes_in(const std::string& text) {
  constexpr size_t kDigits = 16;
  const std::string between = " and ";
  const size_t open = text.find('(', text.find("has made another plan than rank"));
  if (open == std::string::npos) return {};
  const std::string both = text.substr(open + 1, 2 * kDigits + between.size());
  if (both.size() != 2 * kDigits + between.size()) return {};
  if (both.compare(kDigits, between.size(), between) != 0) return {};
  return {both.substr(0, kDigits), both.substr(kDigits + between.size())};
}

class PlanTerms : public CapiTest {};

TEST_P(PlanTerms, DifferenceInAnyTermEndsThePlanOnBothRanks) {
  run(2, [](Member& me) {
    uint64_t tag = 0;
    const std::vector<Tensor> tensors = {whole(0, {1}), whole(0, {1})};
    for (const Term& term : kTerms) {
      SCOPED_TRACE(term.name);
      uint64_t control_ns = 0;
      for (const bool is_changed : {false, true}) {
        const Plan plan(me, draft_of(term, tensors, is_changed, tag++));
        control_ns = std::max(control_ns, control_of(me, plan));
        me.meet();
      }
      const Plan plan(me, draft_of(term, tensors, me.rank() == 1, tag++));
      me.meet();
      Outcome outcome;
      const uint64_t took_ns = time_of([&] { outcome = plan.execute(); });
      EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
      EXPECT_TRUE(has(outcome.text, "has made another plan than rank")) << outcome.text;
      EXPECT_TRUE(has(outcome.text, name_of(1 - me.rank()))) << outcome.text;
      const std::array<std::string, 2> hashes = hashes_in(outcome.text);
      EXPECT_NE(hashes[0], hashes[1]) << outcome.text;
      EXPECT_LT(took_ns, soon(control_ns)) << "the control took " << control_ns << " ns";
      EXPECT_EQ(plan.execute().status, HETCOMM_MISMATCH);
      me.meet();
    }
  });
}

TEST_P(PlanTerms, LocalOptionsMayDifferBetweenRanks) {
  run(2, [](Member& me) {
    for (const int32_t odd : {0, 1}) {
      Draft draft = draft_of({whole(0, {1}), whole(1, {0})}, 1);
      if (me.rank() == odd) {
        draft.options.landing_bytes = 5000;
        draft.options.prove = 1;
        draft.options.weight = 3;
        draft.options.max_bytes_per_second = 1 << 30;
      }
      const Plan plan(me, draft);
      plan.expect_works();
      me.meet();
    }
  });
}

// --- third ranks ----------------------------------------------------------------------

// Rank 0 sends to ranks 1 and 2, and rank 2's plan differs. Rank 1 waits for rank 0, or calls when
// the other ranks have ended. The rate keeps rank 1 from receiving all of its data before rank 0
// learns of the other plan.
TEST_P(PlanTerms, MismatchBetweenTwoRanksIsReportedToTheThird) {
  run(3, [](Member& me) {
    constexpr uint64_t kMany = 500'000;
    constexpr uint64_t kRate = 1'000'000;
    uint64_t tag = 0;
    const std::vector<Tensor> tensors = {whole(0, {1, 2}, kMany), whole(0, {1, 2})};
    for (const Term& term : {kSourceType, kInFlight, kOverflow}) {
      uint64_t control_ns = 0;
      {
        const Plan plan(me, draft_of(term, tensors, false, tag++));
        control_ns = control_of(me, plan);
        me.meet();
      }
      for (const bool waits : {true, false}) {
        SCOPED_TRACE(std::string(term.name) + (waits ? ", rank 1 waits" : ", rank 1 comes later"));
        Draft draft = draft_of(term, tensors, me.rank() == 2, tag++);
        if (me.rank() == 0) draft.options.max_bytes_per_second = kRate;
        const Plan plan(me, draft);
        const bool is_third = me.rank() == 1;
        hetcomm_request_t* request = nullptr;
        if (is_third && waits) request = plan.start(with_timeout(0));
        me.meet();
        if (is_third && !waits) me.meet();
        Outcome outcome;
        const uint64_t took_ns =
            time_of([&] { outcome = request != nullptr ? finish(request) : plan.execute(); });
        if (!is_third && !waits) me.meet();
        EXPECT_EQ(outcome.status, is_third ? HETCOMM_ABORTED : HETCOMM_MISMATCH) << outcome.text;
        EXPECT_TRUE(has(outcome.text, "has made another plan than rank")) << outcome.text;
        for (const int32_t rank : {0, 2}) {
          EXPECT_TRUE(has(outcome.text, name_of(rank))) << outcome.text;
        }
        EXPECT_LT(took_ns, soon(control_ns)) << "the control took " << control_ns << " ns";
        EXPECT_EQ(plan.execute().status, is_third ? HETCOMM_ABORTED : HETCOMM_MISMATCH);
        me.meet();
      }
    }
  });
}

// --- missing plans ----------------------------------------------------------------------

// Rank 0 executes |plan|, which rank 1 lacks, until its deadline. The text contains |others|, the
// plans of rank 1.
void expect_lacking(const Plan& plan, uint64_t tag, const std::string& others,
                    uint64_t control_ns) {
  constexpr uint64_t kTimeoutNs = 500 * kMs;
  Outcome outcome;
  const uint64_t took_ns = time_of([&] { outcome = plan.execute(kTimeoutNs); });
  EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
  EXPECT_TRUE(has(outcome.text,
                  "rank 1 has no plan with tag " + std::to_string(tag) + " and rank 0; " + others))
      << outcome.text;
  EXPECT_GE(took_ns, kTimeoutNs) << "the plan may come until then";
  EXPECT_LT(took_ns, kTimeoutNs + soon(control_ns)) << "the control took " << control_ns << " ns";
}

// Ranks 1 and 2 have a plan with tag 4. Rank 0 makes one with rank 1.
TEST_P(PlanTerms, ErrorNamesTagsOfPlansWithOtherRanks) {
  run(3, [](Member& me) {
    constexpr uint64_t kTag = 4;
    constexpr uint64_t kSharedTag = 5;
    uint64_t control_ns = 0;
    {
      const Plan plan(me, draft_of({whole(0, {1, 2})}, 3));
      control_ns = control_of(me, plan);
      me.meet();
    }
    std::optional<Plan> shared;  // between ranks 0 and 1
    for (const bool is_shared : {false, true}) {
      if (is_shared && me.rank() != 2) shared.emplace(me, draft_of({whole(0, {1})}, kSharedTag));
      const Plan own(me, draft_of({me.rank() == 0 ? whole(0, {1}) : whole(1, {2})}, kTag));
      me.meet();
      if (me.rank() == 0) {
        expect_lacking(
            own, kTag,
            is_shared ? "it has tag 5 and tag 4 with other ranks" : "it has tag 4 with other ranks",
            control_ns);
      } else {
        own.expect_works();
      }
      me.meet();
    }
    if (me.rank() == 0) {
      const Plan second(me, draft_of({whole(0, {1}, 2 * kElements)}, kSharedTag));
      expect_lacking(second, kSharedTag, "it has made 1 with tag 5 so far", control_ns);
    }
    me.meet();
    if (shared) shared->expect_works();
    me.meet();
  });
}

// Executions of rank 0 that have not started by their deadlines: one waits for a stream that a
// receive holds back, and one is queued after it.
class HeldPlans : public CapiTest {};

TEST_P(HeldPlans, ErrorOfAHeldExecutionNamesThePeersPlans) {
  run(2, [](Member& me) {
    constexpr uint64_t kHoldTag = 1000;
    for (const bool is_made : {false, true}) {
      SCOPED_TRACE(is_made ? "rank 1 is late" : "rank 1 has no plan");
      const uint64_t tag = is_made ? 8 : 7;
      Draft draft = draft_of({whole(0, {1})}, tag);
      draft.options.in_flight = 3;
      std::optional<Plan> plan;
      if (me.rank() == 0 || is_made) plan.emplace(me, draft);
      me.meet();
      if (me.rank() == 1) {
        me.meet();
        uint64_t word = 1;
        EXPECT_EQ(finish(me.send(0, kHoldTag, &word, sizeof(word))).status, HETCOMM_OK);
        if (!is_made) plan.emplace(me, draft);
        // Each of the two ended on its own, and the plan still works.
        for (int i = 0; i < 2; ++i) {
          const Outcome outcome = plan->execute();
          EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << outcome.text;
          EXPECT_TRUE(has(outcome.text, "rank 0")) << outcome.text;
          EXPECT_TRUE(has(outcome.text, "TIMED_OUT")) << outcome.text;
        }
        plan->expect_works();
        me.meet();
        continue;
      }
      hetcomm_stream_t* stream = nullptr;
      ASSERT_EQ(hetcomm_stream_create(me.context(), 1, 0, &stream), HETCOMM_OK)
          << hetcomm_last_error();
      hetcomm_operation_options_t in_stream = with_timeout(0);
      in_stream.stream = stream;
      uint64_t word = 0;
      hetcomm_request_t* const holder =
          me.recv(1, kHoldTag, &word, sizeof(word), HETCOMM_EXACT_TAG, &in_stream);
      in_stream.timeout_ns = kSec;
      const uint64_t start_ns = clock_ns();
      hetcomm_request_t* const behind = plan->start(in_stream);
      hetcomm_request_t* const in_line = plan->start(with_timeout(kSec / 2));
      for (const bool is_behind : {false, true}) {
        const Outcome outcome = finish(is_behind ? behind : in_line);
        EXPECT_EQ(outcome.status, is_made ? HETCOMM_TIMED_OUT : HETCOMM_MISMATCH) << outcome.text;
        EXPECT_NE(has(outcome.text, "rank 1 has no plan with tag 7 and rank 0; it has none"),
                  is_made)
            << outcome.text;
        EXPECT_GE(clock_ns() - start_ns, is_behind ? kSec : kSec / 2);
        EXPECT_EQ(hetcomm_request_test(holder, nullptr), HETCOMM_PENDING);
      }
      me.meet();
      EXPECT_EQ(finish(holder).status, HETCOMM_OK);
      plan->expect_works();
      EXPECT_TRUE(me.until([&] { return hetcomm_stream_destroy(stream) == HETCOMM_OK; }))
          << hetcomm_last_error();
      me.meet();
    }
  });
}

// --- stalls -------------------------------------------------------------------------------

std::mutex g_log_mutex;
std::string g_log;  // the log of rank 0

void note_line(void* rank, int32_t /*level*/, const char* line) {
  if (*static_cast<const int32_t*>(rank) != 0) return;
  const std::lock_guard lock(g_log_mutex);
  g_log += line;
  g_log += '\n';
}

// Returns the line in rank 0's log about the operation whose description begins with |name|. Empty:
// none.
std::string line_about(const std::string& name) {
  const std::lock_guard lock(g_log_mutex);
  const size_t at = g_log.find("\n  " + name);
  return at == std::string::npos ? "" : g_log.substr(at + 1, g_log.find('\n', at + 1) - at - 1);
}

// Waits for |request|, which stays pending, until the log has a line about |name|. Returns that
// line.
std::string wait_for_line(hetcomm_request_t* request, const std::string& name) {
  while (line_about(name).empty()) {
    const hetcomm_status_t status = hetcomm_request_wait(request, 20 * kMs, nullptr);
    EXPECT_EQ(status, HETCOMM_TIMED_OUT);
    if (status != HETCOMM_TIMED_OUT) break;
  }
  return line_about(name);
}

class PlanStall : public CapiTest {
 protected:
  void SetUp() override {
    CapiTest::SetUp();
    const std::lock_guard lock(g_log_mutex);
    g_log.clear();
  }
};

// Rank 2 is late, and rank 1 has received its data.
TEST_P(PlanStall, StallReportOfARedistributionNamesTheLateRank) {
  run(3, [](Member& me) {
    const Plan plan(me, draft_of({whole(0, {1, 2})}, 1));
    hetcomm_request_t* request = nullptr;
    if (me.rank() == 1) request = plan.start(with_timeout(0));
    me.meet();
    if (me.rank() == 0) {
      request = plan.start(with_timeout(0));
      const std::string line = wait_for_line(request, "redistribution #0 of 1 tensor");
      EXPECT_TRUE(has(line, "; still waits for rank 2")) << line;
      EXPECT_FALSE(has(line, "has no plan")) << line;
    }
    me.meet();
    if (me.rank() == 2) request = plan.start(with_timeout(0));
    const Outcome outcome = finish(request);
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    me.meet();
  });
}

TEST_P(PlanStall, StallReportNamesTheTagThatThePeerHasInstead) {
  run(2, [](Member& me) {
    const Plan plan(me, draft_of({whole(0, {1})}, me.rank() == 0 ? 7 : 8));
    me.meet();
    if (me.rank() == 0) {
      hetcomm_request_t* const request = plan.start(with_timeout(0));
      const std::string line = wait_for_line(request, "redistribution #0 of 1 tensor");
      EXPECT_TRUE(has(line, "; still waits for rank 1")) << line;
      EXPECT_TRUE(has(line, "; rank 1 has no plan with tag 7 and rank 0; it has tag 8")) << line;
      EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
      EXPECT_EQ(finish(request).status, HETCOMM_CANCELLED);
    }
    me.meet();
  });
}

// Rank 0 gathers from rank 1, which has called, and from ranks 2 and 3, which are late.
TEST_P(PlanStall, StallReportOfACollectiveOperationNamesTheLateRanks) {
  run(4, [](Member& me) {
    const auto start = [&me](uint64_t& word, std::array<uint64_t, 4>& words) {
      hetcomm_request_t* request = nullptr;
      EXPECT_EQ(hetcomm_gather(me.communicator(), 0, hetcomm_buffer_host(&word, sizeof(word)),
                               hetcomm_buffer_host(words.data(), sizeof(words)), HETCOMM_UINT64,
                               nullptr, &request),
                HETCOMM_OK)
          << hetcomm_last_error();
      return request;
    };
    auto word = static_cast<uint64_t>(me.rank());
    std::array<uint64_t, 4> words{};
    // The ranks determine how they are connected.
    EXPECT_EQ(finish(start(word, words)).status, HETCOMM_OK);
    hetcomm_request_t* request = nullptr;
    if (me.rank() == 1) request = start(word, words);
    me.meet();
    if (me.rank() == 0) {
      request = start(word, words);
      const std::string line = wait_for_line(request, "gather");
      EXPECT_TRUE(has(line, "; still waits for rank 2")) << line;
      EXPECT_TRUE(has(line, ", rank 3")) << line;
    }
    me.meet();
    if (me.rank() > 1) request = start(word, words);
    const Outcome outcome = finish(request);
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    me.meet();
  });
}

// --- facts ----------------------------------------------------------------------------------

uint64_t bytes_of(hetcomm_datatype_t type) {
  switch (type) {
    case HETCOMM_UINT8:
      return 1;
    case HETCOMM_FLOAT16:
      return 2;
    default:
      return 4;
  }
}

struct Count {
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  std::set<int32_t> receivers;
  std::set<int32_t> senders;
};

// Counts |rank|'s messages and bytes in |draft|, element by element. Each element has one holder.
Count count_for(int32_t rank, const Draft& draft) {
  Count count;
  const auto holds = [](const hetcomm_part_t& part, uint64_t element) {
    return part.begin[0] <= element && element < part.end[0];
  };
  for (const Tensor& tensor : draft.tensors) {
    const uint64_t bytes = bytes_of(tensor.destination_type);
    for (uint64_t element = 0; element < tensor.shape[0]; ++element) {
      const auto holder =
          std::find_if(tensor.source.parts.begin(), tensor.source.parts.end(),
                       [&](const hetcomm_part_t& part) { return holds(part, element); });
      for (const hetcomm_part_t& to : tensor.destination.parts) {
        if (!holds(to, element) || to.rank == holder->rank) continue;
        if (holder->rank == rank) {
          count.bytes_sent += bytes;
          count.receivers.insert(to.rank);
        }
        if (to.rank == rank) {
          count.bytes_received += bytes;
          count.senders.insert(holder->rank);
        }
      }
    }
  }
  return count;
}

// All data of a small plan from one rank to another forms one message.
TEST_P(PlanTerms, FactsMatchAnElementByElementCount) {
  run(3, [](Member& me) {
    Tensor cut;
    cut.shape = {60};
    cut.source.parts = {box(0, 0, 20), box(1, 20, 45), box(2, 45, 60)};
    cut.destination.parts = {box(0, 0, 10), box(1, 10, 50), box(2, 50, 60)};
    Tensor converted = whole(1, {0}, 60);
    converted.destination.parts.push_back(box(2, 5, 25, 1));
    set_types(converted, HETCOMM_FLOAT32, HETCOMM_FLOAT16);
    Tensor bytes = whole(0, {1}, 7);
    set_types(bytes, HETCOMM_UINT8, HETCOMM_UINT8);
    for (const int32_t strategy : {HETCOMM_STRATEGY_DIRECT, HETCOMM_STRATEGY_BSR}) {
      for (const bool shares : {false, true}) {
        SCOPED_TRACE("strategy " + std::to_string(strategy) + (shares ? ", with a rate" : ""));
        Draft draft = draft_of({cut, converted, bytes}, 1);
        draft.options.strategy = strategy;
        if (shares) {
          draft.options.weight = 3;
          draft.options.max_bytes_per_second = 1 << 30;
        }
        const Plan plan(me, draft);
        const hetcomm_reshard_facts_t facts = plan.facts();
        const Count count = count_for(me.rank(), draft);
        EXPECT_EQ(facts.strategy, strategy);
        EXPECT_EQ(facts.is_strategy_of_all, 1);
        EXPECT_EQ(facts.bytes_sent, count.bytes_sent);
        EXPECT_EQ(facts.bytes_received, count.bytes_received);
        EXPECT_EQ(facts.messages_sent, count.receivers.size());
        EXPECT_EQ(facts.messages_received, count.senders.size());
        EXPECT_EQ(facts.scratch_bytes, 0u);
        const Outcome outcome = plan.execute();
        EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
        EXPECT_EQ(outcome.bytes_sent, count.bytes_sent);
        EXPECT_EQ(outcome.bytes_received, count.bytes_received);
        me.meet();
      }
    }
    // A long tensor is sent in slices, and rank 2 has no part of it.
    constexpr uint64_t kSlices = 10;
    Draft draft = draft_of({whole(0, {1}, kSlices * kElements)}, 2);
    draft.options.slice_bytes = kElements * sizeof(uint32_t);
    const Plan plan(me, draft);
    const hetcomm_reshard_facts_t facts = plan.facts();
    EXPECT_EQ(facts.messages_sent, me.rank() == 0 ? kSlices : 0);
    EXPECT_EQ(facts.messages_received, me.rank() == 1 ? kSlices : 0);
    EXPECT_EQ(facts.bytes_sent, count_for(me.rank(), draft).bytes_sent);
    me.meet();
  });
}

// All ranks are on one host with a latency and a rate of 1 byte per ns.
TEST_P(PlanTerms, ForecastMatchesTheLinkModel) {
  constexpr uint64_t kLatencyNs = 7000;
  const hetcomm::test::TemporaryFolder folder;
  const std::string path = folder.path() + "/links.json";
  std::ofstream(path) << R"({
    "format": "hetcomm link model", "version": 1,
    "resources": [{"name": "bus", "kind": "memory", "bytes_per_s": 1000000000}],
    "clusters": [{"name": "all"}],
    "hosts": [{"label": "single", "cluster": "all", "latency_ns": )"
                      << kLatencyNs << R"(, "inside": ["bus"]}],
    "paths": []})";
  CapiCase with_model = GetParam();
  with_model.settings += "HOST_LABEL=single;LINK_MODEL=" + path + ";";
  run_job(with_model, 2, [](Member& me) {
    Tensor converted = whole(1, {0}, 250);
    set_types(converted, HETCOMM_FLOAT32, HETCOMM_FLOAT16);
    Draft draft = draft_of({whole(0, {1}), converted}, 1);
    {
      const Plan plan(me, draft);
      // Both tensors move at once. The bus carries them in less time than the longer one takes.
      EXPECT_EQ(plan.facts().forecast_ns, kLatencyNs + kElements * bytes_of(HETCOMM_UINT32));
      plan.expect_works();
      me.meet();
    }
    draft.options.strategy = HETCOMM_STRATEGY_AUTO;
    const Plan plan(me, draft);
    EXPECT_NE(plan.facts().strategy, HETCOMM_STRATEGY_AUTO);
    EXPECT_GT(plan.facts().forecast_ns, 0u);
    plan.expect_works();
    me.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(Over, PlanTerms, ::testing::ValuesIn(cases()), capi_case_name);

std::vector<CapiCase> cases_with(const std::string& settings, bool thread_progress,
                                 hetcomm_log_function_t log) {
  std::vector<CapiCase> all;
  for (const char* transport : {"shm", "tcp"}) {
    all.push_back({.name = transport,
                   .transports = transport,
                   .settings = settings,
                   .thread_progress = thread_progress,
                   .log = log});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Over, HeldPlans,
                         ::testing::ValuesIn(cases_with("DEVICES=sim-address:memory=64M;", true,
                                                        nullptr)),
                         capi_case_name);
INSTANTIATE_TEST_SUITE_P(Over, PlanStall,
                         ::testing::ValuesIn(cases_with("STALL_TIME=1s;LOG=warn;", false,
                                                        note_line)),
                         capi_case_name);

}  // namespace
}  // namespace hetcomm_test
