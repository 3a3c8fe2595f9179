// hetcomm_bench queue: measures the gain of a queue between two ranks of a pipeline. One rank
// computes and sends, the other receives and computes, with a queue and with blocking messages in
// turn.
//
//   stream   rank 0 computes an item and pushes it; rank 1 pulls it and computes
//   1f1b     rank 0 computes |warmup| items ahead; rank 1 answers each item with one; rank 0 works
//            on answer i before it makes item i + warmup (the schedule of HetAuto, section 5.1)
//
// The computation is a timer or a loop that keeps its core busy. The baseline sends each item when
// it is made, and receives each item when it is needed, without working ahead.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/work.h"
#include "tools/common/session.h"

namespace bench {

struct QueueOptions {
  uint64_t item_bytes = uint64_t{1} << 20;
  std::vector<std::string> patterns = {"stream", "1f1b"};
  std::vector<std::string> computes = {"timer"};  // or "burn"
  std::vector<int> warmups = {3, 4};              // for 1f1b
  std::vector<double> ratios = {0.5, 1, 2};  // computation time over one-way communication time
  int depth = 4;
  int items = 0;  // items per pass; 0: as many as fill |seconds|
  double seconds = 1;
  int rounds = 3;
};

// Times of one item in microseconds, as medians over the rounds.
struct QueueRow {
  std::string pattern;
  std::string compute;
  int warmup = 0;  // 0: the pattern is not 1f1b
  std::string memory;
  uint64_t item_bytes = 0;
  double compute_us = 0;        // t: computation of one item, measured alone
  double communication_us = 0;  // c: one item, from its push until a waiting pull completes
  double processor_us = 0;      // processor time of one item on the busier rank
  double queue_us = 0;
  double baseline_us = 0;

  double ideal_us() const;    // time of an item if overlap cost nothing
  double ideal_gain() const;  // (t + c) over ideal_us()
  double gain() const { return queue_us > 0 ? baseline_us / queue_us : 0; }
  // Returns the overlapped part of the communication in percent, as in OSU's non-blocking tests.
  double overlap() const;
};

// Runs one rank of a two-rank job that |launcher| started. Returns rows on rank 0 and none on rank
// 1. Calls |progress| with lines of progress. Exits the process on any failure.
std::vector<QueueRow> measure_queue(tools::Launcher launcher, const Work& work,
                                    const QueueOptions& options,
                                    const std::function<void(const std::string&)>& progress);

std::string queue_table(const std::vector<QueueRow>& rows);
// Formats rows like OSU's non-blocking tests: size, overall, compute, pure communication, overlap.
std::string queue_osu(const std::vector<QueueRow>& rows);
std::string queue_json(const std::vector<QueueRow>& rows);

}  // namespace bench
