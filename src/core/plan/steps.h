// The steps of a plan: what one rank sends, receives, copies and combines, in rounds.
//
// A round's sends and receives are all under way at once; when they are over its local steps are done
// in order, then the next round begins. A large transfer is cut into lanes, each with a plan of its
// own, so that one lane reduces while another one moves.
#pragma once

#include <cstdint>
#include <vector>

namespace hetcomm::plan {

// Which memory: the two sides of the user's buffers (kReceive alone where there is one), or scratch
// memory of the lane.
enum class Place : uint8_t { kSend, kReceive, kScratch };

struct Range {
  Place place = Place::kScratch;
  uint32_t part = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
};

enum class StepKind : uint8_t {
  kSend,
  kReceive,
  kCopy,        // to = first
  kCombine,     // to = first op second
  kReduce,      // to = first op inputs[0] op inputs[1] ..., without first where that is empty
  kReduceWide,  // as kReduce, and |to| keeps the precision of |first|
};

struct Step {
  StepKind kind;
  uint32_t round;
  uint32_t peer;  // of sends and receives
  Range to;       // what is sent, received into, or written
  Range first;
  Range second;
  uint32_t inputs_at = 0;  // in the plan's inputs
  uint32_t inputs = 0;
};

struct Plan {
  std::vector<Step> steps;  // by round; sends and receives of a round before its local steps
  std::vector<Range> inputs;
  uint64_t scratch_bytes = 0;
  Range result;  // what has been reduced for this rank and is not final; empty where nothing is
};

}  // namespace hetcomm::plan
