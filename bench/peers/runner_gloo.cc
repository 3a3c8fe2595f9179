// Runs the loops over Gloo's unbound buffers and its TCP transport. The two processes connect to
// each other to exchange the contents of Gloo's store.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <map>
#include <memory>
#include <vector>

#include "bench/peers/meeting.h"
#include "bench/peers/runner.h"

namespace bench {
namespace {

// MeetingStore is a store for two processes. set() immediately sends the value to the other
// process, which receives it in get().
class MeetingStore final : public gloo::rendezvous::Store {
 public:
  MeetingStore(const std::string& name, int rank) { meeting_.open(name, rank); }

  void set(const std::string& key, const std::vector<char>& data) override {
    values_[key] = data;
    meeting_.send(key.data(), key.size());
    meeting_.send(data.data(), data.size());
  }
  std::vector<char> get(const std::string& key) override {
    while (values_.find(key) == values_.end()) {
      const std::vector<char> name = meeting_.receive();
      values_[std::string(name.begin(), name.end())] = meeting_.receive();
    }
    return values_[key];
  }
  // Returns immediately, since get() waits instead.
  void wait(const std::vector<std::string>&) override {}

 private:
  Meeting meeting_;
  std::map<std::string, std::vector<char>> values_;
};

using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

class GlooBackend : public HostBuffers {
 public:
  bool take_word(std::string_view word) {
    std::string_view text;
    if (bench::take_word(word, "meeting", &text)) meeting_name_ = text;
    return !text.empty() || take_integer(word, "rank", &rank_);
  }

  void start(const Workload&) {
    gloo::transport::tcp::attr attributes;
    attributes.iface = "lo";
    std::shared_ptr<gloo::transport::Device> device =
        gloo::transport::tcp::CreateDevice(attributes);
    MeetingStore store(meeting_name_, rank_);
    context_ = std::make_shared<gloo::rendezvous::Context>(rank_, 2);
    context_->connectFullMesh(store, device);
    word_out_ = context_->createUnboundBuffer(&word_sent_, sizeof word_sent_);
    word_in_ = context_->createUnboundBuffer(&word_received_, sizeof word_received_);
  }
  void stop() {
    // The rank that exits first must not cut off the other rank's last message. A send completes
    // only after its receive has been posted.
    if (rank_ == 0) send_word(1, 0);
    receive_word(1 - rank_);
    if (rank_ == 1) send_word(0, 0);
  }

  int rank() const { return rank_; }
  int ranks() const { return 2; }
  std::string path() const { return "tcp"; }

  void prepare(uint64_t bytes, int slots) {
    out_.clear();
    in_.clear();
    HostBuffers::prepare(bytes, slots);
    for (int slot = 0; slot < slots; ++slot) {
      out_.push_back(context_->createUnboundBuffer(send_slot(slot), static_cast<size_t>(bytes)));
      in_.push_back(context_->createUnboundBuffer(receive_slot(slot), static_cast<size_t>(bytes)));
    }
    sends_ = receives_ = 0;
  }

  void send(int peer, int slot) {
    at(out_, slot).send(peer, kData);
    at(out_, slot).waitSend();
  }
  void receive(int peer, int slot) {
    at(in_, slot).recv(peer, kData);
    at(in_, slot).waitRecv();
  }
  // The loops start slots in order, from 0, so wait_all() waits for all slots up to the last one.
  void start_send(int peer, int slot) {
    at(out_, slot).send(peer, kData);
    sends_ = slot + 1;
  }
  void start_receive(int peer, int slot) {
    at(in_, slot).recv(peer, kData);
    receives_ = slot + 1;
  }
  void wait_all() {
    for (int slot = 0; slot < sends_; ++slot) at(out_, slot).waitSend();
    for (int slot = 0; slot < receives_; ++slot) at(in_, slot).waitRecv();
    sends_ = receives_ = 0;
  }
  static constexpr bool kCollectives = true;

  void prepare_collective(Collective operation, uint64_t bytes) {
    prepare(bytes, 1);
    operation_ = operation;
    count_ = static_cast<size_t>(bytes / sizeof(float));
  }
  void run_collective(bool in_place) {
    auto* const out = reinterpret_cast<float*>(receive_slot(0));
    auto* const in = reinterpret_cast<float*>(send_slot(0));
    const size_t part = count_ / 2;
    switch (operation_) {
      case Collective::kBarrier: {
        gloo::BarrierOptions options(context_);
        gloo::barrier(options);
        break;
      }
      case Collective::kBroadcast: {
        gloo::BroadcastOptions options(context_);
        options.setOutput(out, count_);
        options.setRoot(0);
        gloo::broadcast(options);
        break;
      }
      case Collective::kReduce: {
        gloo::ReduceOptions options(context_);
        options.setInput(in, count_);
        options.setOutput(out, count_);
        options.setReduceFunction(&GlooBackend::add);
        options.setRoot(0);
        gloo::reduce(options);
        break;
      }
      case Collective::kAllreduce: {
        gloo::AllreduceOptions options(context_);
        if (!in_place) options.setInput(in, count_);
        options.setOutput(out, count_);
        options.setReduceFunction(&GlooBackend::add);
        gloo::allreduce(options);
        break;
      }
      case Collective::kAllgather: {
        gloo::AllgatherOptions options(context_);
        if (!in_place) options.setInput(in, part);
        options.setOutput(out, count_);
        gloo::allgather(options);
        break;
      }
      case Collective::kAlltoall: {
        gloo::AlltoallOptions options(context_);
        options.setInput(in, count_);
        options.setOutput(out, count_);
        gloo::alltoall(options);
        break;
      }
      default:
        break;
    }
  }
  void send_word(int peer, double value) {
    word_sent_ = value;
    word_out_->send(peer, kWord);
    word_out_->waitSend();
  }
  double receive_word(int peer) {
    word_in_->recv(peer, kWord);
    word_in_->waitRecv();
    return word_received_;
  }

 private:
  static constexpr uint64_t kData = 1;
  static constexpr uint64_t kWord = 2;

  static void add(void* out, const void* a, const void* b, size_t count) {
    gloo::sum<float>(out, a, b, count);
  }
  static gloo::transport::UnboundBuffer& at(const std::vector<Buffer>& buffers, int slot) {
    return *buffers[static_cast<size_t>(slot)];
  }

  int rank_ = 0;
  std::string meeting_name_;
  double word_sent_ = 0;
  double word_received_ = 0;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  Buffer word_out_;
  Buffer word_in_;
  std::vector<Buffer> out_;
  std::vector<Buffer> in_;
  Collective operation_ = Collective::kBarrier;
  size_t count_ = 0;
  int sends_ = 0;
  int receives_ = 0;
};

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  bench::GlooBackend backend;
  return bench::run_backend(backend, argc, argv);
}
