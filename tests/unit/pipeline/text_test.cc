// Schedules as text:
//    - PyTorch's own files come back byte for byte: split steps, transfers, pairs and empty cells;
//    - every schedule of every level reads back as it was written;
//    - hostile text is refused, with line and cell, or gives a schedule that writes the same again.
#include "pipeline/schedule/text.h"

#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/schedule/check.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/warmups.h"

namespace hetcomm::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string file(const std::string& name) {
  std::ifstream in(HETCOMM_TEST_DATA "/" + name);
  EXPECT_TRUE(in.good()) << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string refusal(std::string_view text) {
  const Result<Schedule> schedule = read_csv(text);
  return schedule.ok() ? "none" : std::string(schedule.status().text());
}

TEST(ScheduleText, PyTorchFilesAreWrittenBackByteForByte) {
  for (const char* name :
       {"pytorch_dualpipev_4rank_10mb.csv", "pytorch_zb1p_2rank_2stagep_comms.csv",
        "pytorch_zb1p_2rank_2stagep_compute.csv"}) {
    const std::string text = file(name);
    const Result<Schedule> schedule = read_csv(text);
    ASSERT_TRUE(schedule.ok()) << name << ": " << schedule.status().text();
    EXPECT_EQ(write_csv(schedule.value()), text) << name;
    EXPECT_TRUE(check_unlimited(schedule.value()).ok()) << name;
  }
}

TEST(ScheduleText, PyTorchFilesMatchTheGeneratedSchedules) {
  EXPECT_EQ(write_csv(dual_pipe_v(4, 10).value()), file("pytorch_dualpipev_4rank_10mb.csv"));
  Result<Schedule> read = read_csv(file("pytorch_zb1p_2rank_2stagep_compute.csv"));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(without_bubbles(read.value()), interleaved_zero_bubble(2, 2, 8).value());
  read = read_csv(file("pytorch_zb1p_2rank_2stagep_comms.csv"));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(level_of(read.value()), Level::kTransfers);
  EXPECT_THAT(read->rank_of, ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(read->micro_batches, 8u);
}

TEST(ScheduleText, EveryLevelReadsBackAsItWasWritten) {
  for (const Schedule& compute : {dual_pipe_v(3, 8).value(), zero_bubble_v(3, 7).value(),
                                  four_phase(plain_warmups(3), {true, true, false}, 4).value(),
                                  forward_only(2, 2, 5).value()}) {
    const Schedule reduced = add_reductions(compute);
    const Schedule transfers = add_transfers(reduced, 1);
    const Schedule waits = add_waits(transfers, SendWaits::kBeforeReuse, 2);
    for (const Schedule* each : {&compute, &reduced, &transfers, &waits}) {
      const Result<Schedule> back = read_csv(write_csv(*each));
      ASSERT_TRUE(back.ok()) << back.status().text();
      EXPECT_EQ(back.value(), *each);
    }
  }
}

TEST(ScheduleText, SpacesAndCarriageReturnsAreIgnored) {
  const Result<Schedule> schedule = read_csv(" 0F0 ,, 0B0\r\n1F0,\t1B0\r\n");
  ASSERT_TRUE(schedule.ok()) << schedule.status().text();
  EXPECT_EQ(write_csv(schedule.value()), "0F0,,0B0\n1F0,1B0\n");
}

TEST(ScheduleText, RanksOfStagesCanBeGiven) {
  // Rank 1 has a stage for which nothing is computed.
  EXPECT_THAT(refusal("0F0,0SEND_F0\n1RECV_F0\n"), HasSubstr("none"));
  const Result<Schedule> schedule = read_csv("0F0\n\n", {0, 1});
  ASSERT_TRUE(schedule.ok());
  EXPECT_EQ(schedule.value().ranks(), 2u);
  EXPECT_EQ(schedule.value().stages(), 2u);
}

TEST(ScheduleText, ErrorNamesTheInvalidCell) {
  EXPECT_EQ(refusal("0F0,0X0\n"), "line 1, cell 2: '0X0' is no action");
  EXPECT_EQ(refusal("0F0\n1F0,1B\n"), "line 2, cell 2: '1B' is no action");
  // PyTorch 2.14 takes this for 0W.
  EXPECT_EQ(refusal("0F0,0WAIT_SEND_F\n"), "line 1, cell 2: '0WAIT_SEND_F' is no action");
  EXPECT_EQ(refusal("0W0x\n"), "line 1, cell 1: '0W0x' is no action");
  EXPECT_EQ(refusal("0F-1\n"), "line 1, cell 1: '0F-1' is no action");
  EXPECT_EQ(refusal("0F99999999999\n"), "line 1, cell 1: '0F99999999999' is no action");
  EXPECT_EQ(refusal("0F1048576\n"), "line 1, cell 1: '0F1048576' is no action");
  EXPECT_EQ(refusal("16384F0\n"), "line 1, cell 1: '16384F0' is no action");
  EXPECT_EQ(refusal("F0\n"), "line 1, cell 1: 'F0' is no action");
  EXPECT_EQ(refusal("0REDUCE_GRAD1\n"), "line 1, cell 1: '0REDUCE_GRAD1' is no action");
  EXPECT_THAT(refusal("(0F7;7B3)\n"), HasSubstr("is no action"));
  EXPECT_THAT(refusal("(0F7;7SEND_B3)OVERLAP_F_B\n"), HasSubstr("is no action"));
  EXPECT_THAT(refusal("(0F7)OVERLAP_F_B\n"), HasSubstr("is no action"));
  EXPECT_THAT(refusal(")0F7;7B3(OVERLAP_F_B\n"), HasSubstr("is no action"));
  EXPECT_EQ(refusal("0F0\n0B0\n"), "ranks 0 and 1 compute for stage 0");
  EXPECT_EQ(refusal("0F0\n2F0\n"), "no rank computes for stage 1");
}

TEST(ScheduleText, CorruptedTextIsRefusedOrRoundTrips) {
  const std::string good = write_csv(add_transfers(dual_pipe_v(2, 5).value(), 1));
  const std::string bytes = "0123456789,;()FBIWRSENDCV_OLAP\n \r";
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::string text = good;
    for (uint32_t i = 0; i <= random() % 4; ++i) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = bytes[random() % bytes.size()];
          break;
        case 1:
          text.erase(at, 1 + random() % 9);
          break;
        default:
          text.insert(at, 1, bytes[random() % bytes.size()]);
      }
      if (text.empty()) break;
    }
    const Result<Schedule> schedule = read_csv(text);
    if (!schedule.ok()) continue;
    const std::string written = write_csv(schedule.value());
    const Result<Schedule> back = read_csv(written);
    ASSERT_TRUE(back.ok()) << written;
    ASSERT_EQ(write_csv(back.value()), written);
  }
}

}  // namespace
}  // namespace hetcomm::pipeline
