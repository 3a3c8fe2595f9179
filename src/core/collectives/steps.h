// Steps lists what one rank sends, receives, copies and combines, in rounds.
//
// A round's sends and receives are all in flight at once. When they have ended, the round's local
// steps are done in order, and the next round begins. A large transfer is cut into segments, each
// with its own steps, so that one segment reduces while another moves.
#pragma once

#include <cstdint>
#include <vector>

namespace hetcomm::collectives {

// The memory that contains a range: one of the two sides of the user's buffers (kReceive if there
// is only one side), or the segment's scratch memory.
enum class BufferKind : uint8_t { kSend, kReceive, kScratch };

struct Range {
  BufferKind buffer = BufferKind::kScratch;
  uint32_t block = 0;  // the rank that owns the data, if the buffer has a block for each rank
  uint64_t offset = 0;
  uint64_t length = 0;
};

enum class StepKind : uint8_t {
  kSend,
  kReceive,
  kCopy,        // to = first
  kCombine,     // to = first op second
  kReduce,      // to = first op inputs[0] op inputs[1] ...; an empty |first| is left out
  kReduceWide,  // like kReduce, but |to| keeps the precision of |first|
};

struct Step {
  StepKind kind;
  uint32_t round;
  uint32_t peer;  // other end of a send or receive
  Range to;       // range that is sent, received into, or written
  Range first;
  Range second;
  uint32_t inputs_at = 0;  // index of the step's first input in Steps::inputs
  uint32_t inputs = 0;
  bool is_repeated = false;  // whether other ranks calculate the same elements, with identical bits
};

struct Steps {
  std::vector<Step> list;  // in order of rounds
  std::vector<Range> inputs;
  uint64_t scratch_bytes = 0;
  Range result;  // sum for this rank that is not final yet; empty: none
};

}  // namespace hetcomm::collectives
