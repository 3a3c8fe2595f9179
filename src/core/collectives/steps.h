// Steps is the list of everything that one rank sends, receives, copies and combines, in rounds.
//
// All sends and receives of a round are in flight at once. When they have ended, the round's local
// steps run in order, and then the next round begins. A large transfer is divided into segments,
// each with its own steps, so that one segment is reduced while another is sent.
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
  kReduce,      // to = first op inputs[0] op inputs[1] ...; an empty |first| is omitted
  kReduceWide,  // like kReduce, but |to| keeps the precision of |first|
};

struct Step {
  StepKind kind;
  uint32_t round;
  uint32_t peer;  // the other rank of a send or receive
  Range to;       // the range that is sent, received into or written
  Range first;
  Range second;
  uint32_t inputs_at = 0;  // index of the step's first input in Steps::inputs
  uint32_t inputs = 0;
  bool is_repeated = false;  // other ranks also compute these elements, bit for bit
};

struct Steps {
  std::vector<Step> list;  // in order of rounds
  std::vector<Range> inputs;
  uint64_t scratch_bytes = 0;
  Range result;  // this rank's sum if it is not final yet; empty: none
};

}  // namespace hetcomm::collectives
