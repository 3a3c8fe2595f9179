// Claims on host memory:
//    - a destination over a source, over another destination, or over another claim's memory is
//      refused, and the text names both; sources may share memory
//    - elements count, not ranges, and elements that stay in place do not count
//    - nothing is allocated once a claim has been made
#include "src/reshard/claim.h"

#include <array>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/counting_allocator.h"

namespace hetcomm::reshard {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kElements = 16;

// Returns a vector of kElements on rank 0, with |stride| between elements.
Layout vector_of(uint64_t stride) {
  Layout layout;
  layout.shape = {kElements};
  Part part;
  part.box = layout.whole();
  part.strides[0] = stride;
  layout.parts.push_back(part);
  return layout;
}

// Returns a program of float tensors whose destinations have |stride|.
Program program_of(size_t tensors, uint64_t stride) {
  Program program;
  for (size_t i = 0; i < tensors; ++i) {
    program.sources.push_back({.bytes = kElements * 4, .boxes = footprint_of(vector_of(1), 0, 4)});
    program.sources.back().stays = true;
    program.destinations.push_back(
        {.bytes = kElements * stride * 4, .boxes = footprint_of(vector_of(stride), 0, 4)});
  }
  return program;
}

class Claiming : public ::testing::Test {
 protected:
  // Claims buffers that begin at the given elements of |memory_|.
  Code locate(Claim& claim, const std::vector<size_t>& sources,
              const std::vector<size_t>& destinations) {
    std::vector<hetcomm_buffer_t> from;
    std::vector<hetcomm_buffer_t> to;
    for (const size_t at : sources) from.push_back(buffer(at));
    for (const size_t at : destinations) to.push_back(buffer(at));
    return claim.locate(from.data(), to.data(), nullptr, &text_);
  }
  hetcomm_buffer_t buffer(size_t at) {
    return hetcomm_buffer_host(memory_.data() + at, (memory_.size() - at) * 4);
  }

  std::array<float, 4096> memory_{};
  std::string text_;
};

TEST_F(Claiming, RefusesOverlapBetweenAnyTensors) {
  const Program program = program_of(3, 1);
  Claim claim(program);
  EXPECT_EQ(locate(claim, {0, 0, 8}, {100, 116, 132}), Code::kOk) << text_;
  EXPECT_EQ(locate(claim, {0, 0, 8}, {100, 116, 131}), Code::kInvalidArgument);
  EXPECT_THAT(text_, HasSubstr("destination of tensor 2 overlaps the destination of tensor 1"));
  EXPECT_EQ(locate(claim, {0, 0, 101}, {100, 200, 300}), Code::kInvalidArgument);
  EXPECT_THAT(text_, HasSubstr("destination of tensor 0 overlaps the source of tensor 2"));
  EXPECT_EQ(locate(claim, {0, 0, 101}, {100, 200, 300}), Code::kInvalidArgument);
  // A tensor may stay in place, but may not overlap other tensors.
  EXPECT_EQ(locate(claim, {0, 20, 40}, {0, 20, 40}), Code::kOk) << text_;
  EXPECT_EQ(locate(claim, {0, 20, 40}, {20, 0, 40}), Code::kInvalidArgument);
  EXPECT_EQ(locate(claim, {0, 20, 40}, {1, 20, 40}), Code::kInvalidArgument);
}

TEST_F(Claiming, AcceptsInterleavedElements) {
  const Program program = program_of(3, 3);
  Claim claim(program);
  EXPECT_EQ(locate(claim, {1000, 1000, 1000}, {0, 1, 2}), Code::kOk) << text_;
  EXPECT_EQ(locate(claim, {1000, 1000, 1000}, {0, 1, 3}), Code::kInvalidArgument);
  EXPECT_THAT(text_, HasSubstr("destination of tensor 2 overlaps the destination of tensor 0"));
}

TEST_F(Claiming, RefusesOverlapWithAnotherExecution) {
  const Program program = program_of(1, 1);
  Claims claims(2);
  Claim first(program);
  Claim second(program);
  ASSERT_EQ(locate(first, {0}, {100}), Code::kOk);
  ASSERT_EQ(claims.enter(first, &text_), Code::kOk);
  for (const auto& [source, destination] :
       std::vector<std::pair<size_t, size_t>>{{0, 115}, {90, 200}, {50, 15}}) {
    ASSERT_EQ(locate(second, {source}, {destination}), Code::kOk) << text_;
    EXPECT_EQ(claims.enter(second, &text_), Code::kInvalidArgument) << source;
    EXPECT_THAT(text_, HasSubstr("under way"));
  }
  ASSERT_EQ(locate(second, {0}, {116}), Code::kOk);
  EXPECT_EQ(claims.enter(second, &text_), Code::kOk) << text_;
  claims.leave(second);
  claims.leave(first);
  ASSERT_EQ(locate(second, {0}, {100}), Code::kOk);
  EXPECT_EQ(claims.enter(second, &text_), Code::kOk) << text_;
}

// Two executions ordered by one stream run one after the other.
TEST_F(Claiming, AcceptsReuseOfMemoryWithinAStream) {
  const Program program = program_of(1, 1);
  Claims claims(2);
  Claim first(program);
  Claim second(program);
  int streams[2] = {};
  const auto on_stream = [&](Claim& claim, int which) {
    const hetcomm_buffer_t from = buffer(0);
    const hetcomm_buffer_t to = buffer(100);
    const auto* stream = reinterpret_cast<const UserStream*>(&streams[which]);
    return claim.locate(&from, &to, stream, &text_);
  };
  ASSERT_EQ(on_stream(first, 0), Code::kOk);
  ASSERT_EQ(claims.enter(first, &text_), Code::kOk);
  ASSERT_EQ(on_stream(second, 1), Code::kOk);
  EXPECT_EQ(claims.enter(second, &text_), Code::kInvalidArgument);
  ASSERT_EQ(on_stream(second, 0), Code::kOk);
  EXPECT_EQ(claims.enter(second, &text_), Code::kOk) << text_;
}

TEST_F(Claiming, LocatingAndEnteringAllocateNothing) {
  constexpr size_t kTensors = 40;
  const Program program = program_of(kTensors, 2);
  Claims claims(2);
  Claim first(program);
  Claim second(program);
  std::vector<hetcomm_buffer_t> from;
  std::vector<hetcomm_buffer_t> to[2];
  for (size_t i = 0; i < kTensors; ++i) {
    from.push_back(buffer(0));
    // Pairs of tensors interleave.
    to[0].push_back(buffer(100 + i / 2 * 40 + i % 2));
    to[1].push_back(buffer(1000 + i / 2 * 40 + i % 2));
  }
  test::start_counting_allocations();
  for (int round = 0; round < 4; ++round) {
    ASSERT_EQ(first.locate(from.data(), to[round % 2].data(), nullptr, &text_), Code::kOk) << text_;
    ASSERT_EQ(claims.enter(first, &text_), Code::kOk);
    ASSERT_EQ(second.locate(from.data(), to[1 - round % 2].data(), nullptr, &text_), Code::kOk);
    ASSERT_EQ(claims.enter(second, &text_), Code::kOk);
    claims.leave(first);
    claims.leave(second);
  }
  test::stop_counting_allocations();
  EXPECT_EQ(test::allocations_counted(), 0);
}

}  // namespace
}  // namespace hetcomm::reshard
