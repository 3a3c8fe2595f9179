// Device memory is about to use RDMA for the first time while a user's stream is held back, with a
// vendor whose calls wait for the stream (waiting_devices.h), over fake verbs:
//
//   * the operation ends, and its bytes are right
//   * no trial is made during the hold: the memory is staged
//   * later memory moves directly
//   * memory of a device whose streams were named before moves directly at once
#include <time.h>

#include <memory>
#include <string>
#include <vector>

#include "src/core/device/user_stream.h"
#include "tests/support/core_job.h"
#include "tests/support/fake_verbs.h"
#include "tests/support/on_device.h"
#include "tests/support/pattern.h"
#include "tests/support/waiting_devices.h"
#include "transports/rdma/factory.h"
#include "transports/self/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kSize = 300'000;

std::vector<Device> make_devices() {
  return waiting({create_sim_device("sim-address", "memory=64M").value(),
                  create_sim_device("sim-address", "memory=64M").value()});
}

Factories factories(int /*rank*/) {
  Factories all;
  all.push_back(make_self_factory());
  all.push_back(rdma::make_factory(FakeFabric::verbs()));
  all.push_back(make_tcp_factory());
  return all;
}

// A stream of device 1.
class HeldStream {
 public:
  explicit HeldStream(CoreMember& me) : device_(me.context().devices().device(1)) {
    DeviceSet& devices = me.context().devices();
    EXPECT_EQ(device_.table->stream_create(device_.instance, &native_), HETCOMM_OK);
    stream_ = std::make_unique<UserStream>(devices, 1,
                                           UserStream::open(devices, 1, native_, true).value());
    devices.note_user_streams(1);
    const Engine::Baton baton(me.context().engine());
    me.communicator().job().prepare_for_holds();
  }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;
  ~HeldStream() {
    for (int i = 0; i < 1000 && stream_->in_use(); ++i) {
      const timespec time = {.tv_sec = 0, .tv_nsec = 10'000'000};
      nanosleep(&time, nullptr);
    }
    EXPECT_FALSE(stream_->in_use());
    stream_.reset();
    device_.table->stream_destroy(device_.instance, native_);
  }
  hetcomm_stream_t* get() const { return reinterpret_cast<hetcomm_stream_t*>(stream_.get()); }

 private:
  const Device device_;
  void* native_ = nullptr;
  std::unique_ptr<UserStream> stream_;
};

// Rank 0 sends |device|'s memory, after |stream| unless it is null.
void move(CoreMember& me, size_t device, const HeldStream* stream, uint64_t seed) {
  OnDevice memory(me, kSize, device);
  memory.fill(me.rank() == 0 ? seed : 0);
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  if (stream != nullptr) options.stream = stream->get();
  const hetcomm_buffer_t buffer = memory.part(0, kSize);
  Operation* operation = nullptr;
  std::string text;
  ASSERT_EQ(me.communicator().poster().post(
                {me.rank() == 0 ? OperationKind::kSend : OperationKind::kReceive, 1 - me.rank(),
                 seed, 0, &buffer, 1, &options},
                &operation, &text),
            Code::kOk)
      << text;
  const Status status = me.finish(operation);
  EXPECT_TRUE(status.ok()) << status.text();
  if (me.rank() == 1) {
    EXPECT_EQ(find_mismatch(memory.contents(0, kSize), seed), std::nullopt);
  }
}

// Returns the bytes of device memory that both ranks have exchanged through host memory.
uint64_t staged_bytes(CoreMember& me) {
  hetcomm_counters_t counters{};
  EXPECT_EQ(me.communicator().counters(1 - me.rank(), 1, &counters), 1U);
  return counters.device_bytes_staged;
}

// Returns whether |device|'s memory moves directly over RDMA. Makes the trial if none was made.
bool is_direct(CoreMember& me, size_t device) {
  const Engine::Baton baton(me.context().engine());
  DataServices& data = me.communicator().job().data();
  const std::string text = data.device_access.explain(data.near);
  const std::string line = "(device " + std::to_string(device) + ") over rdma";
  const size_t at = text.find(line);
  return at != std::string::npos &&
         text.substr(at, text.find('\n', at) - at).find("direct (") != std::string::npos;
}

TEST(HeldTrial, DeviceWithKnownStreamsIsAccessedDirectlyAtOnce) {
  FakeFabric::reset();
  run_core_job(
      2, "HETCOMM_TIMEOUT=10s;HETCOMM_PROGRESS=thread", factories,
      [](CoreMember& me) {
        const HeldStream stream(me);
        for (uint64_t seed = 1; seed < 4; ++seed) move(me, 1, &stream, seed);
        EXPECT_EQ(staged_bytes(me), 0U);
      },
      make_devices);
}

TEST(HeldTrial, MemoryOfANewDeviceIsStagedDuringAHold) {
  FakeFabric::reset();
  run_core_job(
      2, "HETCOMM_TIMEOUT=10s;HETCOMM_PROGRESS=thread", factories,
      [](CoreMember& me) {
        {
          const HeldStream stream(me);
          for (uint64_t seed = 1; seed < 4; ++seed) move(me, 2, &stream, seed);
          EXPECT_EQ(staged_bytes(me), 3 * kSize);
        }
        move(me, 2, nullptr, 9);
        EXPECT_TRUE(is_direct(me, 2));
      },
      make_devices);
}

}  // namespace
}  // namespace hetcomm::test
