// Lowering of schedules:
//    - receives stand as many steps ahead as is asked for, and sends right after their steps;
//    - waits stand before the steps that need the data or the buffer, or right after the send;
//    - reductions follow the last step that changes a stage's gradients;
//    - the computations keep their order, and what was lowered is sound;
//    - forward steps keep their order, and the gathers of the weights that they need.
#include "pipeline/schedule/lower.h"

#include <string>

#include <gtest/gtest.h>

#include "pipeline/schedule/check.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/text.h"
#include "pipeline/schedule/warmups.h"

namespace hetcomm::pipeline {
namespace {

Schedule two_ranks() { return one_f_one_b(plain_warmups(2), 3).value(); }

TEST(Lower, ReceivesArePostedTheGivenNumberAhead) {
  EXPECT_EQ(write_csv(add_transfers(two_ranks(), 0)),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RECV_F2,1F2,1B2,1SEND_B2\n");
  EXPECT_EQ(write_csv(add_transfers(two_ranks(), 1)),
            "0RECV_B0,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B1,0B0,0F2,0SEND_F2,0RECV_B2,0B1,0B2\n"
            "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1RECV_F2,1F1,1B1,1SEND_B1,1F2,1B2,1SEND_B2\n");
  EXPECT_EQ(write_csv(add_transfers(two_ranks(), 99)),
            "0RECV_B0,0RECV_B1,0RECV_B2,0F0,0SEND_F0,0F1,0SEND_F1,0B0,0F2,0SEND_F2,0B1,0B2\n"
            "1RECV_F0,1RECV_F1,1RECV_F2,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1F2,1B2,1SEND_B2\n");
}

// H2's order: the gradient is sent right after I, and W runs meanwhile; the next receive is posted
// before R.
TEST(Lower, FourPhasesSendBeforeWAndReceiveBeforeR) {
  const Schedule phases = four_phase({1, 1}, {true, true}, 2).value();
  EXPECT_EQ(write_csv(add_transfers(phases, 1)),
            "0RECV_B0,0F0,0SEND_F0,0R0,0RECV_B1,0I0,0W0,0F1,0SEND_F1,0R1,0I1,0W1\n"
            "1RECV_F0,1RECV_F1,1F0,1R0,1I0,1SEND_B0,1W0,1F1,1R1,1I1,1SEND_B1,1W1\n");
}

TEST(Lower, PairsStayTogether) {
  const Schedule pairs = read_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n").value();
  EXPECT_EQ(write_csv(add_transfers(pairs, 0)),
            "0F0,0SEND_F0,0RECV_B0,(0F1;0B0)OVERLAP_F_B,0SEND_F1,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  const Schedule reduced = add_reductions(pairs);
  EXPECT_EQ(write_csv(reduced),
            "0F0,(0F1;0B0)OVERLAP_F_B,0B1,0REDUCE_GRAD\n1F0,1B0,1F1,1B1,1REDUCE_GRAD\n");
  // The last weight gradient is the first half of a pair.
  EXPECT_EQ(write_csv(add_reductions(read_csv("0F0,1F0,1B0,(0B0;1F1)OVERLAP_F_B,1B1\n").value())),
            "0F0,1F0,1B0,(0B0;1F1)OVERLAP_F_B,0REDUCE_GRAD,1B1,1REDUCE_GRAD\n");
}

TEST(Lower, WaitsPrecedeTheUseOfDataAndBuffers) {
  const Schedule transfers = add_transfers(two_ranks(), 1);
  EXPECT_EQ(
      write_csv(add_waits(transfers, SendWaits::kBeforeReuse, 1)),
      "0RECV_B0,0F0,0SEND_F0,0WAIT_SEND_F0,0F1,0SEND_F1,0RECV_B1,0WAIT_RECV_B0,0B0,"
      "0WAIT_SEND_F1,0F2,0SEND_F2,0RECV_B2,0WAIT_RECV_B1,0B1,0WAIT_RECV_B2,0B2,0WAIT_SEND_F2\n"
      "1RECV_F0,1RECV_F1,1WAIT_RECV_F0,1F0,1B0,1SEND_B0,1RECV_F2,1WAIT_RECV_F1,1F1,"
      "1WAIT_SEND_B0,1B1,1SEND_B1,1WAIT_RECV_F2,1F2,1WAIT_SEND_B1,1B2,1SEND_B2,1WAIT_SEND_B2\n");
  const std::string at_once = write_csv(add_waits(transfers, SendWaits::kAtOnce, 1));
  EXPECT_NE(at_once.find("0SEND_F0,0WAIT_SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F1,"), std::string::npos);
}

TEST(Lower, LoweredSchedulesAreSoundAndConvertBack) {
  for (const Schedule& compute :
       {two_ranks(), zero_bubble_v(4, 9).value(), dual_pipe_v(3, 8).value(),
        interleaved(3, 2, 9).value(), zero_bubble_h2(5, 12).value(), gpipe(3, 4).value()}) {
    const Schedule reduced = add_reductions(compute);
    for (const uint32_t ahead : {0u, 1u, 2u}) {
      const Schedule transfers = add_transfers(reduced, ahead);
      ASSERT_TRUE(check(transfers).ok()) << check(transfers).status().text();
      const Schedule waits = add_waits(transfers, SendWaits::kBeforeReuse, 16);
      ASSERT_TRUE(check(waits).ok()) << check(waits).status().text();
      EXPECT_EQ(level_of(waits), Level::kWaits);
      EXPECT_EQ(computations_of(waits), reduced);
    }
  }
}

TEST(Lower, ForwardStepsKeepTheirOrder) {
  const auto forward = [](const char* csv) {
    return write_csv(forward_steps_of(read_csv(csv).value()));
  };
  EXPECT_EQ(forward("0F0,0F1,0B0,0B1,0REDUCE_GRAD\n1F0,1B0,1F1,1B1\n"), "0F0,0F1\n1F0,1F1\n");
  // A pair with a backward step is a pair no more.
  EXPECT_EQ(forward("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,(1B0;1F1)OVERLAP_F_B,1B1\n"),
            "0F0,0F1\n1F0,1F1\n");
}

TEST(Lower, ForwardStepsKeepTheGathersTheyNeed) {
  const auto forward = [](const char* csv) {
    return write_csv(forward_steps_of(read_csv(csv).value()));
  };
  EXPECT_EQ(forward("0UNSHARD,0F0,0F1,0RESHARD,0UNSHARD,0B0,0B1,0RESHARD,0REDUCE_GRAD\n"),
            "0UNSHARD,0F0,0F1,0RESHARD\n");
  EXPECT_EQ(forward("0UNSHARD,0F0,0B0,0RESHARD,0UNSHARD,0F1,0B1,0RESHARD\n"),
            "0UNSHARD,0F0,0RESHARD,0UNSHARD,0F1,0RESHARD\n");
  EXPECT_EQ(forward("0UNSHARD,1UNSHARD,0F0,1F0,1B0,1RESHARD,1UNSHARD,0B0\n"),
            "0UNSHARD,1UNSHARD,0F0,1F0,1RESHARD\n");
}

}  // namespace
}  // namespace hetcomm::pipeline
