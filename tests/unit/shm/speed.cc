// Latency and bandwidth of the shm transport between two pinned processes, compared with lower
// bounds of the machine in the same run: a bare flag handed over through shared memory, memcpy, and
// a bare copy in by one process and out by the other. Not a test: bounds and transport take turns
// in many short rounds, and best and median are printed.
//
//   shm_speed [rounds] [settings]        settings as for hetcomm, e.g.
//   "SHM_RING_BYTES=256K;SHM_CHUNK=16K"
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/support/transport_pair.h"
#include "transports/shm/factory.h"

namespace hetcomm::test {
namespace {

constexpr std::array<size_t, 4> kSizes = {64u << 10, 1u << 20, 16u << 20, 64u << 20};
constexpr size_t kLargest = 64u << 20;
constexpr int kHandOvers = 20000;
constexpr useconds_t kPauseUs = 50'000;
constexpr size_t kFloorRing = 256 << 10;
constexpr size_t kFloorChunk = 32 << 10;

// Shared by the two processes, to measure the lower bounds and to start each measurement
// simultaneously.
struct Floor {
  alignas(128) std::atomic<uint64_t> near;
  alignas(128) std::atomic<uint64_t> far;
  alignas(128) std::atomic<uint64_t> meeting[2];
  alignas(4096) std::array<std::byte, kFloorRing> ring;
};

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  // Without permission to pin, the figures are only noisier.
  sched_setaffinity(0, sizeof(set), &set);
}

size_t repeats(size_t size) { return std::max<size_t>(2, (32u << 20) / size); }

class Results {
 public:
  void add(const std::string& name, double value) { values_[name].push_back(value); }
  void print(bool smaller_is_better) {
    for (auto& [name, values] : values_) {
      std::sort(values.begin(), values.end());
      std::printf("%-28s best %9.4g  median %9.4g\n", name.c_str(),
                  smaller_is_better ? values.front() : values.back(), values[values.size() / 2]);
    }
  }

 private:
  std::map<std::string, std::vector<double>> values_;
};

class Bench {
 public:
  Bench(Side& side, Floor& floor, int rounds)
      : side_(side), rail_(side.connect()), floor_(floor), rounds_(rounds), buffer_(kLargest) {
    pin(side.rank());
    std::memset(buffer_.data(), side.rank() + 1, buffer_.size());
  }

  void run() {
    exchange_keys();
    for (int round = 0; round < rounds_; ++round) {
      // Other processes of the machine get their turn between rounds rather than within one.
      usleep(kPauseUs);
      latency_.add("latency us: flag", flag_floor());
      latency_.add("latency us: shm 8 B", ping_pong(8));
      latency_.add("latency us: shm 1 KiB", ping_pong(1024));
      for (const size_t size : kSizes) {
        const std::string tail = std::to_string(size >> 10) + " KiB";
        bandwidth_.add("GB/s memcpy        " + tail, memcpy_floor(size));
        bandwidth_.add("GB/s two copies    " + tail, copy_floor(size));
        bandwidth_.add("GB/s shm put       " + tail, puts(size));
      }
      const size_t largest = rail_.capabilities().max_payload_bytes;
      bandwidth_.add("GB/s shm message   " + std::to_string(largest >> 10) + " KiB",
                     messages(largest));
    }
    if (side_.rank() != 0) return;
    std::printf("%s\n", rail_.endpoint().describe().c_str());
    latency_.print(true);
    bandwidth_.print(false);
  }

 private:
  bool near() const { return side_.rank() == 0; }
  void meet() {
    const uint64_t mine = floor_.meeting[side_.rank()].fetch_add(1) + 1;
    while (floor_.meeting[1 - side_.rank()].load() < mine) side_.node().transport().progress();
  }
  static double seconds_since(uint64_t start) {
    return static_cast<double>(now_ns() - start) * 1e-9;
  }

  void exchange_keys() {
    for (const size_t size : kSizes) {
      const iovec piece{buffer_.data(), size};
      auto key = rail_.expose(Extents(&piece, 1), Access::kPutTarget, 1);
      if (!key.ok()) throw Abandoned("expose");
      side_.post(key.value());
      peer_keys_[size] = side_.take<RemoteKey>();
    }
  }

  double flag_floor() {
    meet();
    auto& mine = near() ? floor_.near : floor_.far;
    auto& theirs = near() ? floor_.far : floor_.near;
    const uint64_t base = theirs.load();
    meet();
    const uint64_t start = now_ns();
    for (uint64_t i = base + 1; i <= base + kHandOvers; ++i) {
      if (near()) mine.store(i, std::memory_order_release);
      while (theirs.load(std::memory_order_acquire) != i) {
      }
      if (!near()) mine.store(i, std::memory_order_release);
    }
    return seconds_since(start) * 1e6 / kHandOvers / 2;
  }

  void send(const ExtentView& payload) {
    static const MessageHeader kHeader{};
    while (rail_.endpoint().send(kHeader, payload) == Code::kWouldBlock) {
      side_.node().transport().progress();
    }
  }
  void receive(uint64_t count) {
    while (received_ < count) side_.node().transport().progress();
    received_ -= count;
  }

  double ping_pong(size_t size) {
    const iovec piece{buffer_.data(), size};
    const ExtentView payload{Extents(&piece, 1), 0, size};
    std::byte* const target = buffer_.data() + (1 << 20);
    set_counter(target);
    meet();
    const uint64_t start = now_ns();
    for (int i = 0; i < kHandOvers; ++i) {
      if (near()) send(payload);
      receive(1);
      if (!near()) send(payload);
    }
    return seconds_since(start) * 1e6 / kHandOvers / 2;
  }

  // Installs a handler that counts messages and copies each to |target|.
  void set_counter(std::byte* target) {
    counter_.target = target;
    counter_.received = &received_;
    counter_.put = &put_;
    counter_.completed = &completed_;
    rail_.endpoint().set_handler(&counter_);
  }

  double messages(size_t size) {
    set_counter(buffer_.data());
    const size_t count = 1024;
    const iovec piece{buffer_.data() + kLargest / 2, size};
    meet();
    const uint64_t start = now_ns();
    if (near()) {
      for (size_t i = 0; i < count; ++i) send({Extents(&piece, 1), 0, size});
      receive(1);
    } else {
      receive(count);
      send({});
    }
    return static_cast<double>(size * count) / seconds_since(start) / 1e9;
  }

  // Measures puts of |size|, one at a time, with an answer at the end.
  double puts(size_t size) {
    set_counter(buffer_.data());
    const size_t count = repeats(size);
    const iovec piece{buffer_.data(), size};
    put_ = 0;
    meet();
    const uint64_t start = now_ns();
    if (near()) {
      for (size_t i = 0; i < count; ++i) {
        Bulk bulk;
        bulk.local = {Extents(&piece, 1), 0, size};
        bulk.key = peer_keys_.at(size);
        completed_ = 0;
        if (rail_.endpoint().abilities().puts->put(bulk) != Code::kOk) throw Abandoned("put");
        while (completed_ == 0) side_.node().transport().progress();
      }
      receive(1);
    } else {
      while (put_ < size * count) side_.node().transport().progress();
      send({});
    }
    return static_cast<double>(size * count) / seconds_since(start) / 1e9;
  }

  double memcpy_floor(size_t size) {
    meet();
    double result = 0;
    if (near()) {
      if (copy_.empty()) copy_.assign(kLargest, std::byte{1});
      const uint64_t start = now_ns();
      for (size_t i = 0; i < repeats(size); ++i) {
        std::memcpy(copy_.data(), buffer_.data(), size);
        asm volatile("" ::: "memory");
      }
      result = static_cast<double>(size * repeats(size)) / seconds_since(start) / 1e9;
    }
    meet();
    return result;
  }

  double copy_floor(size_t size) {
    meet();
    floor_.near = floor_.far = 0;
    meet();
    const size_t total = size * repeats(size);
    const uint64_t start = now_ns();
    for (size_t done = 0; done < total; done += kFloorChunk) {
      std::byte* const slot = floor_.ring.data() + done % kFloorRing;
      if (near()) {
        while (done + kFloorChunk - floor_.far.load(std::memory_order_acquire) > kFloorRing) {
        }
        std::memcpy(slot, buffer_.data() + done % size, kFloorChunk);
        floor_.near.store(done + kFloorChunk, std::memory_order_release);
      } else {
        while (floor_.near.load(std::memory_order_acquire) <= done) {
        }
        std::memcpy(buffer_.data() + done % size, slot, kFloorChunk);
        floor_.far.store(done + kFloorChunk, std::memory_order_release);
      }
    }
    if (near()) {
      while (floor_.far.load(std::memory_order_acquire) != total) {
      }
    }
    const double result = static_cast<double>(total) / seconds_since(start) / 1e9;
    meet();
    floor_.near = floor_.far = 0;
    meet();
    return result;
  }

  class Counter final : public EndpointHandler {
   public:
    void on_message(const MessageHeader&, ConstByteSpan payload) override {
      std::memcpy(target, payload.data(), payload.size());
      ++*received;
    }
    void on_put(uint64_t, uint64_t length) override { *put += length; }
    void on_bulk_complete(Bulk&, Code) override { ++*completed; }
    void on_mapped(const RemoteKey&, const Result<MappedRegion>&) override {}
    void on_unmap(const RemoteKey&) override {}
    void on_writable() override {}
    void on_doubt(const StreamId&) override {}
    void on_failed(const Status& why) override {
      std::fprintf(stderr, "%s\n", std::string(why.text()).c_str());
      std::_Exit(1);
    }
    std::byte* target = nullptr;
    uint64_t* received = nullptr;
    uint64_t* put = nullptr;
    uint64_t* completed = nullptr;
  };

  Side& side_;
  Rail& rail_;
  Floor& floor_;
  int rounds_;
  Counter counter_;
  uint64_t received_ = 0;
  uint64_t put_ = 0;
  uint64_t completed_ = 0;
  std::map<size_t, RemoteKey> peer_keys_;
  std::vector<std::byte> buffer_;
  std::vector<std::byte> copy_;
  Results latency_;
  Results bandwidth_;
};

}  // namespace
}  // namespace hetcomm::test

int main(int argc, char** argv) {
  using namespace hetcomm::test;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  const auto factory = hetcomm::make_shm_factory();
  Shared<Floor> floor;
  const auto both = [&](Side& side) {
    // Both ends leave together: destroying one early would fail the other's last wait.
    Bench(side, *floor, rounds).run();
    side.meet();
    std::fflush(nullptr);
    std::_Exit(0);
  };
  run_pair({.factory = *factory, .settings = argc > 2 ? argv[2] : "", .mode = Mode::kProcesses},
           both, both);
  return 0;
}
