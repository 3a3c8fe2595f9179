// Operations that wait for a user's stream, which an unfinished operation holds back, still respond
// to the causes that end other operations (hetcomm/stream.h). For every kind of operation and each
// cause:
//
//   * a peer that is killed, a peer that cannot be reached, a communicator that is aborted: the
//     operation ends about as soon as one without a stream
//   * memory that its owner has unregistered: it ends within the detection time and 1 s
//   * the stream continues as soon as the operation that held it back has ended
//
// Data that has arrived stays valid: a message is received after its sender died, and a broadcast
// whose root has left succeeds.
//
// The stream is held back by a receive that rank 2 eventually answers. Rank 1 is lost.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

constexpr int32_t kVictim = 1;
constexpr int32_t kOther = 2;
constexpr uint64_t kWords = 8;
constexpr uint64_t kDetectionNs = 3 * kSec;
constexpr uint64_t kHoldTag = 1000;
constexpr uint64_t kPlainTag = 1001;

std::vector<CapiCase> cases() {
  std::vector<CapiCase> all;
  for (const char* transport : {"shm", "tcp"}) {
    all.push_back({.name = transport,
                   .transports = transport,
                   .settings = "DEVICES=sim-address:memory=64M;DETECTION_TIME=3s;TIMEOUT=60s;",
                   .thread_progress = true,
                   .processes = true});
  }
  return all;
}

// Objects needed by operations, created by all ranks together.
class Setting {
 public:
  Setting(Member& me, bool reaches) : me_(me), reaches_(reaches) {
    if (me.rank() == kVictim) {
      EXPECT_EQ(hetcomm_memory_wrap(me.context(), 0, shared_.data(), sizeof(shared_), &own_),
                HETCOMM_OK);
      EXPECT_EQ(hetcomm_memory_register(
                    own_, me.communicator(),
                    HETCOMM_ACCESS_PUT | HETCOMM_ACCESS_GET | HETCOMM_ACCESS_ATOMIC, 0),
                HETCOMM_OK)
          << hetcomm_last_error();
      std::array<std::byte, HETCOMM_EXPORT_MAX_BYTES> bytes{};
      size_t size = 0;
      EXPECT_EQ(hetcomm_memory_export(own_, bytes.size(), bytes.data(), &size), HETCOMM_OK);
      EXPECT_EQ(me.store().put("export", bytes.data(), size), HETCOMM_OK);
    }
    if (me.rank() == 0) {
      std::array<std::byte, HETCOMM_EXPORT_MAX_BYTES> bytes{};
      size_t size = bytes.size();
      EXPECT_EQ(me.store().get("export", bytes.data(), &size, kPatienceNs), HETCOMM_OK);
      EXPECT_EQ(hetcomm_memory_import(me.communicator(), bytes.data(), size, &remote_), HETCOMM_OK)
          << hetcomm_last_error();
      EXPECT_EQ(hetcomm_stream_create(me.context(), 1, 0, &stream_), HETCOMM_OK)
          << hetcomm_last_error();
    }
    if (reaches_ && me.rank() != kOther) {
      make_queues();
      make_plan();
    }
    me.meet();
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
  ~Setting() {
    if (me_.rank() == 0) {
      // Work that was held back continues.
      EXPECT_TRUE(me_.until([&] { return hetcomm_stream_destroy(stream_) == HETCOMM_OK; }))
          << hetcomm_last_error();
      EXPECT_EQ(hetcomm_remote_memory_destroy(remote_), HETCOMM_OK) << hetcomm_last_error();
    }
    if (own_ != nullptr) revoke();
    for (hetcomm_queue_t* const each : {out_, in_}) {
      EXPECT_EQ(hetcomm_queue_destroy(each), HETCOMM_OK) << hetcomm_last_error();
    }
    EXPECT_EQ(hetcomm_reshard_destroy(plan_), HETCOMM_OK) << hetcomm_last_error();
  }

  hetcomm_stream_t* stream() const { return stream_; }
  hetcomm_remote_memory_t* remote() const { return remote_; }
  // Called by rank 1: the other ranks may no longer use its memory.
  void revoke() {
    EXPECT_EQ(hetcomm_memory_unregister(own_, 0), HETCOMM_OK) << hetcomm_last_error();
    EXPECT_EQ(hetcomm_memory_destroy(own_), HETCOMM_OK) << hetcomm_last_error();
    own_ = nullptr;
  }
  hetcomm_queue_t* out() const { return out_; }
  hetcomm_queue_t* in() const { return in_; }
  hetcomm_reshard_t* plan() const { return plan_; }

 private:
  // Rank 0 pushes into the first queue and pulls from the second.
  void make_queues() {
    const int32_t peer = me_.rank() == 0 ? kVictim : 0;
    for (const uint64_t tag : {uint64_t{1}, uint64_t{2}}) {
      const bool pushes = (me_.rank() == 0) == (tag == 1);
      hetcomm_queue_options_t options{};
      options.struct_size = sizeof(options);
      options.tag = tag;
      options.max_item_bytes = 64;
      EXPECT_EQ(hetcomm_queue_create(me_.communicator(), peer,
                                     pushes ? HETCOMM_QUEUE_PUSH : HETCOMM_QUEUE_PULL, &options,
                                     tag == 1 ? &out_ : &in_),
                HETCOMM_OK)
          << hetcomm_last_error();
    }
  }
  // A tensor moves from rank 1 to rank 0.
  void make_plan() {
    const uint64_t shape[] = {kWords};
    hetcomm_layout_t* layouts[2] = {};
    for (const int32_t rank : {0, 1}) {
      hetcomm_part_t part{};
      part.rank = rank;
      part.end[0] = kWords;
      EXPECT_EQ(hetcomm_layout_from_parts(1, shape, &part, 1, nullptr, &layouts[rank]), HETCOMM_OK)
          << hetcomm_last_error();
    }
    const hetcomm_reshard_tensor_t tensor = {layouts[1], layouts[0], HETCOMM_UINT64,
                                             HETCOMM_UINT64};
    EXPECT_EQ(hetcomm_reshard_create(me_.communicator(), &tensor, 1, nullptr, &plan_), HETCOMM_OK)
        << hetcomm_last_error();
    for (hetcomm_layout_t* const each : layouts) {
      EXPECT_EQ(hetcomm_layout_destroy(each), HETCOMM_OK);
    }
  }

  Member& me_;
  const bool reaches_;
  std::array<uint64_t, kWords> shared_{};
  hetcomm_memory_t* own_ = nullptr;
  hetcomm_remote_memory_t* remote_ = nullptr;
  hetcomm_stream_t* stream_ = nullptr;
  hetcomm_queue_t* out_ = nullptr;
  hetcomm_queue_t* in_ = nullptr;
  hetcomm_reshard_t* plan_ = nullptr;
};

hetcomm_operation_options_t behind(const Setting& setting, uint32_t flags = 0) {
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  options.stream = setting.stream();
  options.flags = flags;
  return options;
}

hetcomm_collective_options_t collective_behind(const Setting& setting) {
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  options.stream = setting.stream();
  return options;
}

// A kind of operation between rank 0 and rank 1.
struct Kind {
  const char* name;
  std::function<hetcomm_status_t(Member&, const Setting&, hetcomm_buffer_t, hetcomm_request_t**)>
      post;
  bool is_access = false;     // accesses rank 1's memory
  bool needs_tracks = false;  // needs tracks, which are made while the peer is reachable
  bool is_collective = false;
  // Prepared requests outlive their run.
  void release(hetcomm_request_t* request) const {
    if (std::string(name) != "prepared") return;
    EXPECT_EQ(hetcomm_request_destroy(request), HETCOMM_OK) << hetcomm_last_error();
  }
};

std::vector<Kind> kinds() {
  using Buffer = hetcomm_buffer_t;
  using Out = hetcomm_request_t**;
  std::vector<Kind> all;
  all.push_back({"send", [](Member& me, const Setting& in, Buffer buffer, Out out) {
                   const auto options = behind(in);
                   return hetcomm_send(me.communicator(), kVictim, 1, buffer, &options, out);
                 }});
  all.push_back({"receive", [](Member& me, const Setting& in, Buffer buffer, Out out) {
                   const auto options = behind(in);
                   return hetcomm_recv(me.communicator(), kVictim, 2, 0, buffer, &options, out);
                 }});
  all.push_back({"prepared", [](Member& me, const Setting& in, Buffer buffer, Out out) {
                   const auto options = behind(in);
                   const hetcomm_status_t status = hetcomm_recv_prepare(
                       me.communicator(), kVictim, 3, 0, &buffer, 1, &options, out);
                   return status == HETCOMM_OK ? hetcomm_request_start(*out) : status;
                 }});
  all.push_back({"group", [](Member& me, const Setting& in, Buffer buffer, Out out) {
                   auto options = behind(in);
                   EXPECT_EQ(hetcomm_group_create(me.communicator(), &options.group), HETCOMM_OK);
                   const hetcomm_status_t status =
                       hetcomm_recv(me.communicator(), kVictim, 4, 0, buffer, &options, out);
                   EXPECT_EQ(hetcomm_group_start(options.group), HETCOMM_OK);
                   hetcomm_group_destroy(options.group);
                   return status;
                 }});
  all.push_back({"flush", [](Member& me, const Setting& in, Buffer, Out out) {
                   const auto options = behind(in);
                   return hetcomm_flush(me.communicator(), kVictim, &options, out);
                 }});
  all.push_back({"put",
                 [](Member&, const Setting& in, Buffer buffer, Out out) {
                   const auto options = behind(in);
                   return hetcomm_put(in.remote(), 0, buffer, &options, out);
                 },
                 true});
  all.push_back({"put that notifies",
                 [](Member&, const Setting& in, Buffer buffer, Out out) {
                   const auto options = behind(in, HETCOMM_OPERATION_NOTIFY);
                   return hetcomm_put(in.remote(), 0, buffer, &options, out);
                 },
                 true});
  all.push_back({"get",
                 [](Member&, const Setting& in, Buffer buffer, Out out) {
                   const auto options = behind(in);
                   return hetcomm_get(in.remote(), 0, buffer, &options, out);
                 },
                 true});
  all.push_back({"addition",
                 [](Member&, const Setting& in, Buffer, Out out) {
                   const auto options = behind(in);
                   return hetcomm_fetch_add(in.remote(), 0, 1, nullptr, &options, out);
                 },
                 true});
  all.push_back({"exchange",
                 [](Member&, const Setting& in, Buffer, Out out) {
                   const auto options = behind(in);
                   return hetcomm_compare_swap(in.remote(), 0, 0, 1, nullptr, &options, out);
                 },
                 true});
  all.push_back({"push",
                 [](Member&, const Setting& in, Buffer buffer, Out out) {
                   const auto options = behind(in);
                   return hetcomm_queue_push(in.out(), buffer, &options, out);
                 },
                 false, true});
  all.push_back({"pull",
                 [](Member&, const Setting& in, Buffer buffer, Out out) {
                   const auto options = behind(in);
                   return hetcomm_queue_pull(in.in(), buffer, &options, out);
                 },
                 false, true});
  all.push_back({"redistribution",
                 [](Member&, const Setting& in, Buffer buffer, Out out) {
                   const auto options = behind(in);
                   return hetcomm_reshard_start(in.plan(), nullptr, &buffer, &options, out);
                 },
                 false, true});
  all.push_back({"receive from any", [](Member& me, const Setting& in, Buffer buffer, Out out) {
                   const auto options = behind(in, HETCOMM_OPERATION_FAIL_ON_ANY_LOSS);
                   return hetcomm_recv(me.communicator(), HETCOMM_ANY_SOURCE, 5, 0, buffer,
                                       &options, out);
                 }});
  all.push_back({"allreduce",
                 [](Member& me, const Setting& in, Buffer buffer, Out out) {
                   const auto options = collective_behind(in);
                   return hetcomm_allreduce(me.communicator(), buffer, buffer, HETCOMM_UINT64,
                                            HETCOMM_REDUCE_SUM, &options, out);
                 },
                 false, false, true});
  all.push_back({"broadcast",
                 [](Member& me, const Setting& in, Buffer buffer, Out out) {
                   const auto options = collective_behind(in);
                   return hetcomm_broadcast(me.communicator(), kVictim, buffer, HETCOMM_UINT64,
                                            &options, out);
                 },
                 false, false, true});
  return all;
}

// Rank 0's operations.
class Waiting {
 public:
  Waiting(Member& me, const Setting& setting, const std::vector<Kind>& kinds)
      : me_(me), kinds_(kinds), words_(kinds.size()) {
    const auto options = behind(setting);
    holder_ = me.recv(kOther, kHoldTag, &held_, sizeof(held_), HETCOMM_EXACT_TAG, &options);
    for (size_t i = 0; i < kinds.size(); ++i) {
      hetcomm_request_t* request = nullptr;
      const hetcomm_buffer_t buffer =
          hetcomm_buffer_host(words_[i].data(), kWords * sizeof(uint64_t));
      EXPECT_EQ(kinds[i].post(me, setting, buffer, &request), HETCOMM_OK)
          << kinds[i].name << ": " << hetcomm_last_error();
      requests_.push_back(request);
    }
    usleep(50'000);
    for (size_t i = 0; i < kinds.size(); ++i) {
      EXPECT_EQ(hetcomm_request_test(requests_[i], nullptr), HETCOMM_PENDING) << kinds[i].name;
    }
  }
  // Expects that all operations end with |status| within |within_ns|.
  void expect_ends(hetcomm_status_t status, uint64_t within_ns) {
    const uint64_t deadline = clock_ns() + within_ns;
    for (size_t i = 0; i < requests_.size(); ++i) {
      const uint64_t now = clock_ns();
      hetcomm_completion_t completion{};
      const hetcomm_status_t waited = hetcomm_request_wait(
          requests_[i], now < deadline ? deadline - now : HETCOMM_TIMEOUT_POLL, &completion);
      EXPECT_EQ(waited, HETCOMM_OK) << kinds_[i].name << " has not ended: " << hetcomm_last_error();
      if (waited != HETCOMM_OK) continue;
      EXPECT_EQ(completion.status, status)
          << kinds_[i].name << ": " << (completion.text != nullptr ? completion.text : "");
      kinds_[i].release(requests_[i]);
    }
    EXPECT_EQ(hetcomm_request_test(holder_, nullptr), HETCOMM_PENDING);
  }
  // Releases the stream, or expects that it is already released.
  void finish(hetcomm_status_t status = HETCOMM_OK) {
    EXPECT_EQ(me_.store().put("go on", "", 0), HETCOMM_OK);
    const Outcome outcome = hetcomm_test::finish(holder_);
    EXPECT_EQ(outcome.status, status) << outcome.text;
  }
  hetcomm_request_t* request(size_t index) const { return requests_[index]; }

 private:
  Member& me_;
  const std::vector<Kind> kinds_;
  uint64_t held_ = 0;
  hetcomm_request_t* holder_ = nullptr;
  std::vector<std::array<uint64_t, kWords>> words_;
  std::vector<hetcomm_request_t*> requests_;
};

// Rank 2 waits for rank 0, and ends the operation that holds the stream back.
void let_go(Member& me) {
  size_t size = 0;
  EXPECT_EQ(me.store().get("go on", nullptr, &size, 3 * kPatienceNs), HETCOMM_OK);
  uint64_t word = 0;
  const Outcome outcome = finish(me.send(0, kHoldTag, &word, sizeof(word)));
  EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
}

// An operation on rank 0 without a stream shows how soon the loss is reported.
uint64_t time_of_plain(hetcomm_request_t* plain, uint64_t begin_ns, hetcomm_status_t status) {
  const Outcome outcome = finish(plain);
  EXPECT_EQ(outcome.status, status) << outcome.text;
  return clock_ns() - begin_ns;
}

class StreamLoss : public CapiTest {
 protected:
  void run_three(const std::function<void(Member&)>& body) { run_job(case_, 3, body); }
  void SetUp() override {
    CapiTest::SetUp();
    case_ = GetParam();
  }
  CapiCase case_;
};

TEST_P(StreamLoss, KilledPeerEndsOperationsThatWaitForAStream) {
  run_three([](Member& me) {
    me.expect_ruin();
    if (me.rank() == kVictim) {
      Setting setting(me, true);
      me.meet();
      me.die();
    }
    Setting setting(me, true);
    if (me.rank() == kOther) {
      me.meet();
      let_go(me);
      return;
    }
    uint64_t word = 0;
    hetcomm_request_t* const plain = me.recv(kVictim, kPlainTag, &word, sizeof(word));
    Waiting waiting(me, setting, kinds());
    const uint64_t begin_ns = clock_ns();
    me.meet();
    const uint64_t plain_ns = time_of_plain(plain, begin_ns, HETCOMM_PEER_LOST);
    waiting.expect_ends(HETCOMM_PEER_LOST, kSec + plain_ns);
    waiting.finish();
  });
}

TEST_P(StreamLoss, OperationPostedAfterTheLossEnds) {
  run_three([](Member& me) {
    me.expect_ruin();
    if (me.rank() == kVictim) {
      Setting setting(me, true);
      me.meet();
      me.die();
    }
    Setting setting(me, true);
    if (me.rank() == kOther) {
      me.meet();
      let_go(me);
      return;
    }
    uint64_t word = 0;
    hetcomm_request_t* const plain = me.recv(kVictim, kPlainTag, &word, sizeof(word));
    const auto options = behind(setting);
    uint64_t held = 0;
    hetcomm_request_t* const holder =
        me.recv(kOther, kHoldTag, &held, sizeof(held), HETCOMM_EXACT_TAG, &options);
    const uint64_t begin_ns = clock_ns();
    me.meet();
    const uint64_t plain_ns = time_of_plain(plain, begin_ns, HETCOMM_PEER_LOST);
    std::array<uint64_t, kWords> words{};
    for (const Kind& kind : kinds()) {
      hetcomm_request_t* request = nullptr;
      const hetcomm_status_t status =
          kind.post(me, setting, hetcomm_buffer_host(words.data(), sizeof(words)), &request);
      if (status == HETCOMM_PEER_LOST) continue;  // the call itself reports the loss
      ASSERT_EQ(status, HETCOMM_OK) << kind.name << ": " << hetcomm_last_error();
      const Outcome outcome = finish(request, kSec + plain_ns);
      EXPECT_EQ(outcome.status, HETCOMM_PEER_LOST) << kind.name << ": " << outcome.text;
      kind.release(request);
    }
    EXPECT_EQ(me.store().put("go on", "", 0), HETCOMM_OK);
    EXPECT_EQ(finish(holder).status, HETCOMM_OK);
  });
}

TEST_P(StreamLoss, AbortEndsOperationsThatWaitForAStream) {
  run_three([](Member& me) {
    me.expect_ruin();
    Setting setting(me, true);
    if (me.rank() == kOther) {
      me.meet();
      EXPECT_EQ(hetcomm_communicator_abort(me.communicator(), "enough"), HETCOMM_OK);
      me.meet();
      return;
    }
    if (me.rank() == kVictim) {
      me.meet();
      me.meet();
      return;
    }
    uint64_t word = 0;
    hetcomm_request_t* const plain = me.recv(kVictim, kPlainTag, &word, sizeof(word));
    Waiting waiting(me, setting, kinds());
    const uint64_t begin_ns = clock_ns();
    me.meet();
    const uint64_t plain_ns = time_of_plain(plain, begin_ns, HETCOMM_ABORTED);
    for (size_t i = 0; i < kinds().size(); ++i) {
      const Outcome outcome = finish(waiting.request(i), kSec + plain_ns);
      EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << kinds()[i].name << ": " << outcome.text;
      kinds()[i].release(waiting.request(i));
    }
    waiting.finish(HETCOMM_ABORTED);
    me.meet();
  });
}

// Only the memory is gone.
TEST_P(StreamLoss, RevokedMemoryEndsOperationsThatWaitForAStream) {
  run_three([](Member& me) {
    Setting setting(me, true);
    if (me.rank() == kVictim) {
      me.meet();
      setting.revoke();
      me.meet();
      me.meet();
      return;
    }
    if (me.rank() == kOther) {
      me.meet();
      me.meet();
      let_go(me);
      me.meet();
      return;
    }
    std::vector<Kind> accesses = kinds();
    std::erase_if(accesses, [](const Kind& kind) { return !kind.is_access; });
    ASSERT_EQ(accesses.size(), 5u);
    Waiting waiting(me, setting, accesses);
    // This receive continues.
    uint64_t word = 0;
    hetcomm_request_t* const plain = me.recv(kVictim, kPlainTag, &word, sizeof(word));
    me.meet();
    me.meet();
    waiting.expect_ends(HETCOMM_STALE_HANDLE, kDetectionNs + kSec);
    EXPECT_EQ(hetcomm_request_test(plain, nullptr), HETCOMM_PENDING);
    EXPECT_EQ(hetcomm_request_cancel(plain), HETCOMM_OK);
    EXPECT_EQ(finish(plain).status, HETCOMM_CANCELLED);
    waiting.finish();
    me.meet();
  });
}

TEST_P(StreamLoss, MessageThatArrivedBeforeTheLossIsReceived) {
  run_three([](Member& me) {
    me.expect_ruin();
    constexpr uint64_t kHereTag = 7;
    std::array<uint64_t, kWords> words{};
    if (me.rank() == kVictim) {
      Setting setting(me, true);
      words.fill(4711);
      EXPECT_EQ(finish(me.send(0, kHereTag, words.data(), sizeof(words))).status, HETCOMM_OK);
      me.meet();
      me.meet();
      me.die();
    }
    Setting setting(me, true);
    if (me.rank() == kOther) {
      me.meet();
      me.meet();
      let_go(me);
      return;
    }
    hetcomm_completion_t found{};
    me.meet();
    EXPECT_EQ(hetcomm_probe(me.communicator(), kVictim, kHereTag, 0, kPatienceNs, &found),
              HETCOMM_OK);
    const std::vector<Kind> none;
    Waiting waiting(me, setting, none);
    const auto options = behind(setting);
    std::array<uint64_t, kWords> second{};
    hetcomm_request_t* const here =
        me.recv(kVictim, kHereTag, words.data(), sizeof(words), HETCOMM_EXACT_TAG, &options);
    hetcomm_request_t* const missing =
        me.recv(kVictim, kHereTag, second.data(), sizeof(second), HETCOMM_EXACT_TAG, &options);
    me.meet();
    const Outcome lost = finish(missing);
    EXPECT_EQ(lost.status, HETCOMM_PEER_LOST) << lost.text;
    EXPECT_EQ(hetcomm_request_test(here, nullptr), HETCOMM_PENDING);
    waiting.finish();
    const Outcome outcome = finish(here);
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    EXPECT_EQ(std::count(words.begin(), words.end(), 4711u), static_cast<ptrdiff_t>(kWords));
  });
}

// The operation uses messages: in an arena the root waits until all ranks have copied its bytes.
TEST_P(StreamLoss, BroadcastSucceedsAfterItsRootHasLeft) {
  case_.settings += "COLLECTIVE_SHARED=0;";
  run_three([](Member& me) {
    me.expect_ruin();
    std::array<uint64_t, kWords> words{};
    words.fill(me.rank() == kVictim ? 815 : 0);
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(words.data(), sizeof(words));
    hetcomm_request_t* request = nullptr;
    for (int i = 0; i < 2; ++i) {
      // In the first operations the ranks determine how they are connected.
      ASSERT_EQ(
          hetcomm_broadcast(me.communicator(), kOther, buffer, HETCOMM_UINT64, nullptr, &request),
          HETCOMM_OK);
      EXPECT_EQ(finish(request).status, HETCOMM_OK);
    }
    words.fill(me.rank() == kVictim ? 815 : 0);
    if (me.rank() == 0) {
      hetcomm_stream_t* stream = nullptr;
      ASSERT_EQ(hetcomm_stream_create(me.context(), 1, 0, &stream), HETCOMM_OK);
      auto options = hetcomm_operation_options_t{};
      options.struct_size = sizeof(options);
      options.stream = stream;
      uint64_t held = 0;
      uint64_t word = 0;
      hetcomm_request_t* const plain = me.recv(kVictim, kPlainTag, &word, sizeof(word));
      hetcomm_request_t* const holder =
          me.recv(kOther, kHoldTag, &held, sizeof(held), HETCOMM_EXACT_TAG, &options);
      auto with = hetcomm_collective_options_t{};
      with.struct_size = sizeof(with);
      with.stream = stream;
      ASSERT_EQ(
          hetcomm_broadcast(me.communicator(), kVictim, buffer, HETCOMM_UINT64, &with, &request),
          HETCOMM_OK);
      me.meet();
      EXPECT_EQ(finish(plain).status, HETCOMM_PEER_LOST);  // the rank has left
      usleep(50'000);
      EXPECT_EQ(hetcomm_request_test(request, nullptr), HETCOMM_PENDING);
      EXPECT_EQ(me.store().put("go on", "", 0), HETCOMM_OK);
      EXPECT_EQ(finish(holder).status, HETCOMM_OK);
      const Outcome outcome = finish(request);
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      EXPECT_EQ(words[0], 815u);
      EXPECT_TRUE(me.until([&] { return hetcomm_stream_destroy(stream) == HETCOMM_OK; }));
      return;
    }
    ASSERT_EQ(
        hetcomm_broadcast(me.communicator(), kVictim, buffer, HETCOMM_UINT64, nullptr, &request),
        HETCOMM_OK);
    EXPECT_EQ(finish(request).status, HETCOMM_OK);
    me.meet();
    if (me.rank() == kOther) let_go(me);
  });
}

INSTANTIATE_TEST_SUITE_P(Over, StreamLoss, ::testing::ValuesIn(cases()), capi_case_name);

// Rank 1 uses another transport than the other ranks.
std::vector<CapiCase> cases_out_of_reach() {
  CapiCase apart{.name = "apart",
                 .transports = "",
                 .settings = "DEVICES=sim-address:memory=64M;DETECTION_TIME=3s;TIMEOUT=60s;",
                 .thread_progress = true,
                 .processes = true};
  apart.prepare = [](int32_t rank) {
    EXPECT_EQ(setenv("HETCOMM_TRANSPORTS", rank == kVictim ? "shm" : "tcp", 1), 0);
  };
  return {apart};
}

class StreamsApart : public StreamLoss {};

// Nothing but operations that wait for a stream looks for rank 1, unless |has_plain|: then an
// operation without a stream does so, too, and shows how soon the peer is found to be unreachable.
void expect_unreachable(Member& me, bool has_plain) {
  me.expect_ruin();
  Setting setting(me, false);
  if (me.rank() == kVictim) {
    me.meet();
    return;
  }
  if (me.rank() == kOther) {
    let_go(me);
    me.meet();
    return;
  }
  std::vector<Kind> all = kinds();
  // No part of a collective operation involves only rank 1.
  std::erase_if(all, [](const Kind& kind) { return kind.needs_tracks || kind.is_collective; });
  Waiting waiting(me, setting, {});
  const uint64_t begin_ns = clock_ns();
  std::vector<hetcomm_request_t*> requests;
  std::array<uint64_t, kWords> words{};
  for (const Kind& kind : all) {
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(kind.post(me, setting, hetcomm_buffer_host(words.data(), sizeof(words)), &request),
              HETCOMM_OK)
        << kind.name << ": " << hetcomm_last_error();
    requests.push_back(request);
  }
  uint64_t limit_ns = 2 * kPatienceNs;
  if (has_plain) {
    uint64_t word = 0;
    hetcomm_request_t* const plain = me.recv(kVictim, kPlainTag, &word, sizeof(word));
    limit_ns = kSec + time_of_plain(plain, begin_ns, HETCOMM_UNREACHABLE);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const Outcome outcome = finish(requests[i], limit_ns);
    EXPECT_EQ(outcome.status, HETCOMM_UNREACHABLE) << all[i].name << ": " << outcome.text;
    all[i].release(requests[i]);
  }
  waiting.finish();
  me.meet();
}

TEST_P(StreamsApart, UnreachablePeerEndsOperationsThatWaitForAStream) {
  run_three([](Member& me) { expect_unreachable(me, true); });
}

TEST_P(StreamsApart, UnreachablePeerIsDetectedIfAllOperationsWaitForAStream) {
  run_three([](Member& me) { expect_unreachable(me, false); });
}

INSTANTIATE_TEST_SUITE_P(Over, StreamsApart, ::testing::ValuesIn(cases_out_of_reach()),
                         capi_case_name);

}  // namespace
}  // namespace hetcomm_test
