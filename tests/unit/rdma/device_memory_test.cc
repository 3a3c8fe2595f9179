// Device memory that the NIC accesses directly; over a fake: not run on hardware. (Plain
// registration is also tested on real verbs, in conformance/capi/device/memory_test.cc.)
//   - a dma-buf is tried first, plain registration next, else the memory is not reachable; the
//     result of each method is reported;
//   - a successful registration is no proof: the method is refused if the device does not read back
//     the NIC's write, or the reverse, or if the transfer does not end or ends with an error;
//   - trials leave nothing behind;
//   - placeholders represent attached memory in puts, gets, exposures and regions, of any size,
//     mixed with host memory; keys reach exactly the range that they were made for;
//   - after detach() nothing remains registered.
#include <sched.h>
#include <sys/mman.h>

#include <cerrno>
#include <functional>

#include "tests/unit/device/fixture.h"
#include "tests/unit/rdma/fixture.h"
#include "transports/rdma/device_trial.h"
#include "transports/rdma/wire.h"

namespace hetcomm::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kReadBack = "what was written was read back";
constexpr uint64_t kSize = 200'000;

// A simulated device whose table entries a test may replace.
class Accelerator {
 public:
  explicit Accelerator(const char* kind = "sim-address") : device_(kind, "memory=16M") {
    table_ = device_.table();
  }
  DeviceTable& table() { return table_; }
  Device get() const { return {&table_, device_.instance()}; }
  TestDevice& device() { return device_; }
  // Returns the kernel's mapping of all its memory.
  std::byte* bytes() {
    void* const first = device_.allocate(1);
    void* place = nullptr;
    EXPECT_EQ(device_.table().registrable_address(device_.instance(), first, 0, 1, &place),
              HETCOMM_OK);
    device_.free(first);
    return static_cast<std::byte*>(place);
  }

 private:
  TestDevice device_;
  DeviceTable table_;
};

// Memory on the device, with a placeholder.
class Attached {
 public:
  Attached(Transport& transport, Accelerator& accelerator, uint64_t size, unsigned seed)
      : transport_(transport), device_(accelerator.device()), size_(size) {
    address_ = device_.allocate(size);
    stream_ = device_.stream();
    placeholder_ = static_cast<std::byte*>(
        mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    const std::vector<std::byte> bytes = random_bytes(size, seed);
    EXPECT_EQ(device_.write(stream_, address_, 0, bytes.data(), size), HETCOMM_OK);
    device_.finish(stream_);
    status =
        transport_.abilities().devices->attach({accelerator.get(), address_, size, placeholder_});
  }
  Attached(const Attached&) = delete;
  Attached& operator=(const Attached&) = delete;
  ~Attached() {
    transport_.abilities().devices->detach(placeholder_);
    device_.destroy_stream(stream_);
    device_.free(address_);
    munmap(placeholder_, size_);
  }
  iovec piece(uint64_t offset, uint64_t length) { return {placeholder_ + offset, length}; }
  std::byte* placeholder() { return placeholder_; }
  std::vector<std::byte> contents() {
    std::vector<std::byte> bytes(size_);
    EXPECT_EQ(device_.read(stream_, bytes.data(), address_, 0, size_), HETCOMM_OK);
    device_.finish(stream_);
    return bytes;
  }
  Status status;

 private:
  Transport& transport_;
  TestDevice& device_;
  uint64_t size_;
  void* address_ = nullptr;
  void* stream_ = nullptr;
  std::byte* placeholder_ = nullptr;
};

class RdmaDeviceMemory : public ::testing::Test {
 protected:
  void SetUp() override { FakeFabric::reset(); }
  void TearDown() override {
    EXPECT_EQ(FakeFabric::open_objects(), 0u);
    EXPECT_EQ(FakeFabric::registrations(), 0u);
  }
  // Returns the verdict, and checks that nothing was left behind.
  static Status check(Accelerator& accelerator, HangingCopy* hanging = nullptr) {
    HangingCopy none;
    FakePair pair;
    const size_t objects = FakeFabric::open_objects();
    const size_t registrations = FakeFabric::registrations();
    Status status = pair.a.transport().abilities().devices->check_device(
        accelerator.get(), hanging != nullptr ? hanging : &none);
    EXPECT_EQ(none.event, nullptr);
    EXPECT_EQ(FakeFabric::open_objects(), objects);
    EXPECT_EQ(FakeFabric::registrations(), registrations);
    return status;
  }
  static std::string text(const Status& status) { return std::string(status.text()); }
};

// --- the trial -------------------------------------------------------------------------------

TEST_F(RdmaDeviceMemory, DmaBufIsTriedFirst) {
  FakeFabric::accept_dmabufs();
  Accelerator accelerator;
  const Status status = check(accelerator);
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(text(status), std::string("dma-buf: ") + kReadBack);
}

TEST_F(RdmaDeviceMemory, PlainRegistrationIsTriedAfterDmaBuf) {
  Accelerator accelerator;
  const Status status = check(accelerator);
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(text(status), std::string("dma-buf: ibv_reg_dmabuf_mr: Operation not supported; "
                                      "plain registration: ") +
                              kReadBack);
}

TEST_F(RdmaDeviceMemory, EachRefusedMethodIsReported) {
  struct Case {
    const char* what;
    std::function<void(Accelerator&)> prepare;
    const char* dmabuf;
    const char* plain;  // nullptr: plain registration works
  };
  const Case cases[] = {
      {"no dma-buf", [](Accelerator& each) { each.table().export_dmabuf = nullptr; },
       "dma-buf: the device exports none", nullptr},
      {"the export fails",
       [](Accelerator& each) {
         each.table().export_dmabuf = [](void*, const void*, uint64_t, uint64_t, int*, uint64_t*) {
           return hetcomm_status_t{HETCOMM_OUT_OF_RESOURCES};
         };
       },
       "dma-buf: sim-address: exporting a dma-buf:", nullptr},
      {"no address", [](Accelerator& each) { each.table().registrable_address = nullptr; },
       "Operation not supported", "plain registration: the device names no address"},
      {"an address that it does not name",
       [](Accelerator& each) {
         each.table().registrable_address = [](void*, const void*, uint64_t, uint64_t, void**) {
           return hetcomm_status_t{HETCOMM_UNSUPPORTED};
         };
       },
       "Operation not supported", "plain registration: sim-address: naming an address:"},
      {"no memory of the device",
       [](Accelerator& each) {
         each.table().allocate = [](void*, uint64_t, void**) {
           return hetcomm_status_t{HETCOMM_OUT_OF_MEMORY};
         };
       },
       "dma-buf: sim-address: allocating:", "plain registration: sim-address: allocating:"},
      {"copies of the device fail",
       [](Accelerator& each) {
         each.table().copy_from_host = [](void*, void*, void*, uint64_t, const void*, uint64_t) {
           return hetcomm_status_t{HETCOMM_DEVICE_LOST};
         };
       },
       "Operation not supported", "plain registration: sim-address: copying:"},
      {"remote writes cannot be flushed",
       [](Accelerator& each) {
         each.table().flush_remote_writes = [](void*) {
           return hetcomm_status_t{HETCOMM_DEVICE_LOST};
         };
       },
       "Operation not supported", "plain registration: sim-address: flushing remote writes:"},
  };
  for (const Case& each : cases) {
    Accelerator accelerator;
    each.prepare(accelerator);
    const Status status = check(accelerator);
    EXPECT_EQ(status.ok(), each.plain == nullptr) << each.what << ": " << status.text();
    EXPECT_THAT(text(status), HasSubstr(each.dmabuf)) << each.what;
    EXPECT_THAT(text(status), each.plain == nullptr ? HasSubstr(kReadBack) : HasSubstr(each.plain));
  }
  Accelerator by_handle("sim-handle");
  EXPECT_THAT(text(check(by_handle)), AllOf(HasSubstr("exports none"), HasSubstr("no address")));
}

TEST_F(RdmaDeviceMemory, LibraryWithoutDmaBufsUsesPlainRegistration) {
  rdma::Verbs verbs = FakeFabric::verbs();
  verbs.reg_dmabuf_mr = nullptr;
  const std::unique_ptr<TransportFactory> factory = rdma::make_factory(verbs);
  Node node({*factory, "", make_credentials(), 0, 2});
  Accelerator accelerator;
  HangingCopy none;
  const Status status =
      node.transport().abilities().devices->check_device(accelerator.get(), &none);
  EXPECT_TRUE(status.ok());
  EXPECT_THAT(text(status), HasSubstr("dma-buf: libibverbs has no ibv_reg_dmabuf_mr; plain"));
}

// Registration succeeds, but the NIC reaches other memory.
TEST_F(RdmaDeviceMemory, MethodIsRefusedIfDataDoesNotReadBack) {
  for (const auto misplaced : {FakeFabric::Misplaced::kWrites, FakeFabric::Misplaced::kReads}) {
    const char* const why = misplaced == FakeFabric::Misplaced::kWrites
                                ? "what the NIC wrote is not what the device reads back"
                                : "what the device wrote is not what the NIC reads";
    Accelerator accelerator;
    FakeFabric::accept_dmabufs();
    FakeFabric::misplace(misplaced);
    Status status = check(accelerator);
    EXPECT_TRUE(status.ok());
    EXPECT_THAT(text(status), AllOf(HasSubstr(std::string("dma-buf: ") + why),
                                    HasSubstr(std::string("plain registration: ") + kReadBack)));
    FakeFabric::misplace(misplaced, accelerator.bytes(), 16u << 20);
    status = check(accelerator);
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_THAT(text(status), AllOf(HasSubstr(std::string("dma-buf: ") + why),
                                    HasSubstr(std::string("plain registration: ") + why),
                                    Not(HasSubstr(kReadBack))));
    FakeFabric::misplace(FakeFabric::Misplaced::kNothing);
  }
}

TEST_F(RdmaDeviceMemory, MethodIsRefusedIfTheTrialFails) {
  for (int code = IBV_WC_LOC_LEN_ERR; code <= IBV_WC_TM_RNDV_INCOMPLETE; ++code) {
    FakeFabric::accept_dmabufs();
    FakeFabric::fail_next(static_cast<ibv_wc_status>(code), IBV_WR_RDMA_WRITE);
    Accelerator accelerator;
    const Status status = check(accelerator);
    EXPECT_TRUE(status.ok()) << "the next way has queue pairs of its own";
    EXPECT_THAT(text(status),
                HasSubstr("dma-buf: the NIC's write fails: status " + std::to_string(code) + " "));
  }
}

TEST_F(RdmaDeviceMemory, MethodIsRefusedIfTheTrialWriteHangs) {
  FakeFabric::accept_dmabufs();
  FakeFabric::lose_next();
  Accelerator accelerator;
  const Status status = check(accelerator);
  EXPECT_TRUE(status.ok());
  EXPECT_THAT(text(status), HasSubstr("dma-buf: the NIC does not finish the write; plain"));
}

// The caller then owns the copy and its memory. No other method is tried, because it would hang
// too.
TEST_F(RdmaDeviceMemory, HangingDeviceCopyEndsTheTrial) {
  FakeFabric::accept_dmabufs();
  Accelerator accelerator;
  accelerator.table().event_query = [](void*, void*) -> hetcomm_status_t {
    return HETCOMM_PENDING;
  };
  HangingCopy hanging;
  const Status status = check(accelerator, &hanging);
  EXPECT_EQ(status.code(), Code::kOutOfResources) << "it may end";
  EXPECT_THAT(text(status), HasSubstr("dma-buf: sim-address: a copy of 16384 bytes has not ended"));
  EXPECT_THAT(text(status), Not(HasSubstr("plain")));
  ASSERT_NE(hanging.event, nullptr);
  EXPECT_NE(hanging.host, nullptr);
  EXPECT_EQ(hanging.bytes, 16384u);
  const DeviceTable& real = accelerator.device().table();
  while (real.event_query(accelerator.device().instance(), hanging.event) == HETCOMM_PENDING) {
    sched_yield();
  }
  real.event_release(accelerator.device().instance(), hanging.event);
  delete[] static_cast<const std::byte*>(hanging.host);  // it would leak
}

TEST_F(RdmaDeviceMemory, TrialFailsWithoutQueuePairs) {
  Accelerator accelerator;
  FakeFabric::fail_queue_pairs(ENOMEM);
  Status status = check(accelerator);
  EXPECT_EQ(status.code(), Code::kOutOfResources) << "there may be memory later";
  EXPECT_THAT(text(status), HasSubstr("queue pair"));
  FakeFabric::fail_queue_pairs(0);
}

// Returns how long the trial waits for a NIC that does not answer.
uint64_t wait_for_a_silent_nic(const char* settings) {
  static rdma::Verbs verbs;
  verbs = FakeFabric::verbs();
  verbs.poll_cq = [](ibv_cq*, int, ibv_wc*) { return 0; };
  FakeFabric::accept_dmabufs();
  Accelerator accelerator;
  FakePair pair(settings, nullptr, &verbs);
  const uint64_t begin = now_ns();
  HangingCopy none;
  const Status status =
      pair.a.transport().abilities().devices->check_device(accelerator.get(), &none);
  const uint64_t elapsed = now_ns() - begin;
  EXPECT_EQ(status.code(), Code::kOutOfResources) << "it may have had much to do";
  EXPECT_THAT(std::string(status.text()),
              HasSubstr("dma-buf: the NIC does not finish the write; plain"));
  return elapsed;
}

TEST_F(RdmaDeviceMemory, SilentNicIsAwaitedBeforeRefusal) {
  EXPECT_GE(wait_for_a_silent_nic(""), 200 * kMillisecond);
  EXPECT_GE(wait_for_a_silent_nic("DEVICE_PATH=direct"), kSecond);
}

// The rest of the context makes no progress during that wait.
TEST_F(RdmaDeviceMemory, WaitForASilentNicIsBounded) {
  EXPECT_LT(wait_for_a_silent_nic(""), 800 * kMillisecond);
  EXPECT_LT(wait_for_a_silent_nic("DEVICE_PATH=direct"), 3 * kSecond);
}

// --- use -------------------------------------------------------------------------------------

class RdmaDeviceMemoryUse : public RdmaDeviceMemory,
                            public ::testing::WithParamInterface<rdma::DeviceWay> {
 protected:
  void SetUp() override {
    RdmaDeviceMemory::SetUp();
    if (GetParam() == rdma::DeviceWay::kDmaBuf) FakeFabric::accept_dmabufs();
  }
  static void check_both(FakePair& pair, Accelerator& accelerator) {
    for (Node* node : {&pair.a, &pair.b}) {
      HangingCopy none;
      ASSERT_TRUE(
          node->transport().abilities().devices->check_device(accelerator.get(), &none).ok());
    }
    ASSERT_TRUE(pair.connect());
  }
  static bool finished(FakePair& pair) {
    return pair.run([&] { return pair.to_b().running() == 0; }) &&
           pair.to_b().completions.back().code == Code::kOk;
  }
};

TEST_P(RdmaDeviceMemoryUse, PutsAndGetsOfSeveralSizesMoveDeviceMemory) {
  FakePair pair("RDMA_SLICE=64K");
  Accelerator accelerator;
  check_both(pair, accelerator);
  for (const uint64_t size : {uint64_t{1}, uint64_t{100}, uint64_t{4096}, uint64_t{150'000}}) {
    Attached near(pair.a.transport(), accelerator, kSize, 1);
    Attached far(pair.b.transport(), accelerator, kSize, 2);
    ASSERT_TRUE(near.status.ok() && far.status.ok()) << near.status.text();
    std::vector<std::byte> expected = far.contents();
    const std::vector<std::byte> sent = near.contents();
    const iovec target = far.piece(5000, size);
    const iovec source = near.piece(33, size);
    const auto key = pair.to_a().expose({&target, 1}, Access::kPutTarget, 7);
    ASSERT_TRUE(key.ok());
    Bulk put{.local = {{&source, 1}, 0, size}, .key = key.value()};
    ASSERT_EQ(pair.to_b().put(put), Code::kOk);
    ASSERT_TRUE(finished(pair));
    ASSERT_TRUE(pair.run([&] { return pair.to_a().put_bytes[7] == size; }));
    pair.to_a().release(key.value());
    pair.to_a().put_bytes.clear();
    std::copy_n(sent.begin() + 33, size, expected.begin() + 5000);
    EXPECT_EQ(far.contents(), expected) << size;
    // The bytes are read back to a different place.
    const iovec again = near.piece(40'000, size);
    const auto readable = pair.to_a().expose({&target, 1}, Access::kGetSource, 8);
    ASSERT_TRUE(readable.ok());
    Bulk get{.local = {{&again, 1}, 0, size}, .key = readable.value()};
    ASSERT_EQ(pair.to_b().get(get), Code::kOk);
    ASSERT_TRUE(finished(pair));
    pair.to_a().release(readable.value());
    std::vector<std::byte> got = sent;
    std::copy_n(expected.begin() + 5000, size, got.begin() + 40'000);
    EXPECT_EQ(near.contents(), got) << size;
  }
}

TEST_P(RdmaDeviceMemoryUse, OnePutMayMixDeviceAndHostMemory) {
  FakePair pair;
  Accelerator accelerator;
  check_both(pair, accelerator);
  Attached near(pair.a.transport(), accelerator, kSize, 1);
  std::vector<std::byte> host = random_bytes(300, 3);
  std::vector<std::byte> target(kSize);
  const iovec target_piece{target.data(), target.size()};
  const iovec pieces[] = {
      {host.data(), 100}, near.piece(10, 50), {host.data() + 100, 200}, near.piece(1000, 10'000)};
  const auto key = pair.to_a().expose({&target_piece, 1}, Access::kPutTarget, 7);
  ASSERT_TRUE(key.ok());
  Bulk put{.local = {pieces, 0, 10'350}, .key = key.value()};
  ASSERT_EQ(pair.to_b().put(put), Code::kOk);
  ASSERT_TRUE(finished(pair));
  ASSERT_TRUE(pair.run([&] { return pair.to_a().put_bytes[7] == 10'350; }));
  const std::vector<std::byte> device = near.contents();
  std::vector<std::byte> expected(host.begin(), host.begin() + 100);
  expected.insert(expected.end(), device.begin() + 10, device.begin() + 60);
  expected.insert(expected.end(), host.begin() + 100, host.end());
  expected.insert(expected.end(), device.begin() + 1000, device.begin() + 11'000);
  target.resize(expected.size());
  EXPECT_EQ(target, expected);
  pair.to_a().release(key.value());
}

TEST_P(RdmaDeviceMemoryUse, RegionsAreAccessibleUntilWithdrawn) {
  FakePair pair;
  Accelerator accelerator;
  check_both(pair, accelerator);
  Attached far(pair.b.transport(), accelerator, kSize, 2);
  std::vector<std::byte> expected = far.contents();
  std::vector<std::byte> host = random_bytes(60'000, 4);
  const iovec piece{host.data(), host.size()};
  const auto key = pair.b.transport().abilities().regions->publish(
      {.address = far.placeholder() + 1000, .length = 100'000, .writable = true, .readable = true});
  ASSERT_TRUE(key.ok());
  Bulk put{.local = {{&piece, 1}, 0, host.size()}, .key = key.value(), .remote_offset = 11};
  ASSERT_EQ(pair.to_b().put(put), Code::kOk);
  ASSERT_TRUE(finished(pair));
  std::copy(host.begin(), host.end(), expected.begin() + 1011);
  EXPECT_EQ(far.contents(), expected);
  pair.b.transport().abilities().regions->withdraw(key.value());
  ASSERT_EQ(pair.to_b().put(put), Code::kOk);
  EXPECT_TRUE(pair.run([&] { return pair.to_b().failed > 0; })) << "the key has ended";
}

// A key that a peer forges reaches nothing outside the range.
TEST_P(RdmaDeviceMemoryUse, ForgedKeyReachesNothingBeyondItsRange) {
  FakePair pair;
  Accelerator accelerator;
  check_both(pair, accelerator);
  Attached far(pair.b.transport(), accelerator, kSize, 2);
  const std::vector<std::byte> before = far.contents();
  const iovec target = far.piece(5000, 1000);
  const auto key = pair.to_a().expose({&target, 1}, Access::kPutTarget, 7);
  ASSERT_TRUE(key.ok());
  rdma::Key forged = *rdma::decode_key(key.value());
  forged.length += 1;
  std::vector<std::byte> host(1001);
  const iovec piece{host.data(), host.size()};
  Bulk put{.local = {{&piece, 1}, 0, host.size()}, .key = rdma::encode_key(forged)};
  ASSERT_EQ(pair.to_b().put(put), Code::kOk);
  EXPECT_TRUE(pair.run([&] { return pair.to_b().failed > 0; }));
  EXPECT_EQ(far.contents(), before);
}

TEST_P(RdmaDeviceMemoryUse, RegistrationsAreCachedUntilDetach) {
  FakePair pair;
  Accelerator accelerator;
  check_both(pair, accelerator);
  const size_t before = FakeFabric::registrations();
  {
    Attached far(pair.b.transport(), accelerator, kSize, 2);
    EXPECT_EQ(FakeFabric::registrations(), before + 1) << "all of it, for this side's use";
    const iovec target = far.piece(5000, 1000);
    for (int i = 0; i < 3; ++i) {
      const auto key = pair.to_a().expose({&target, 1}, Access::kPutTarget, 7);
      ASSERT_TRUE(key.ok());
      pair.to_a().release(key.value());
      EXPECT_EQ(FakeFabric::registrations(), before + 2) << "kept for the next time";
    }
    const auto key = pair.to_a().expose({&target, 1}, Access::kGetSource, 7);
    ASSERT_TRUE(key.ok());
    EXPECT_EQ(FakeFabric::registrations(), before + 3) << "other rights";
    pair.to_a().revoke(key.value());
    EXPECT_EQ(FakeFabric::registrations(), before + 2) << "revoked: not kept";
  }
  EXPECT_EQ(FakeFabric::registrations(), before);
}

TEST_P(RdmaDeviceMemoryUse, UnregistrableMemoryIsRefused) {
  FakePair pair;
  Accelerator accelerator;
  check_both(pair, accelerator);
  FakeFabric::fail_registrations(ENOMEM);
  {
    const Attached far(pair.b.transport(), accelerator, kSize, 2);
    EXPECT_FALSE(far.status.ok());
  }
  FakeFabric::fail_registrations(ENOMEM, 1);
  {
    Attached far(pair.b.transport(), accelerator, kSize, 2);
    EXPECT_TRUE(far.status.ok());
    const iovec target = far.piece(0, 1000);
    EXPECT_FALSE(pair.to_a().expose({&target, 1}, Access::kPutTarget, 7).ok());
  }
  FakeFabric::fail_registrations(0);
  Accelerator other("sim-handle");
  const Attached unknown(pair.b.transport(), other, kSize, 2);
  EXPECT_EQ(unknown.status.code(), Code::kUnsupported) << "of a device that is not reached";
}

INSTANTIATE_TEST_SUITE_P(Ways, RdmaDeviceMemoryUse,
                         ::testing::Values(rdma::DeviceWay::kDmaBuf, rdma::DeviceWay::kPlain),
                         [](const ::testing::TestParamInfo<rdma::DeviceWay>& way) {
                           return way.param == rdma::DeviceWay::kDmaBuf ? "dmabuf" : "plain";
                         });

}  // namespace
}  // namespace hetcomm::test
