#include "bench/queue_share.h"

#include <deque>
#include <memory>
#include <numeric>
#include <thread>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "bench/loops/samples.h"
#include "bench/report.h"
#include "src/present/statistics.h"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;

double now_s() { return static_cast<double>(now_ns()) * 1e-9; }

// An End is one rank's end of a queue. All items have the full size except the last one, which is
// empty.
class End {
 public:
  End(hetcomm_communicator_t* communicator, int peer, bool pushes, const ShareOptions& options,
      uint32_t weight, uint64_t tag)
      : pushes_(pushes), depth_(static_cast<size_t>(options.depth)) {
    buffers_.assign(depth_, std::vector<std::byte>(options.item_bytes, std::byte{1}));
    const hetcomm_queue_options_t terms{.struct_size = sizeof(terms),
                                        .tag = tag,
                                        .max_item_bytes = options.item_bytes,
                                        .depth = static_cast<uint32_t>(depth_),
                                        .weight = pushes ? weight : 0,
                                        .max_bytes_per_second = 0};
    tools::require(
        hetcomm_queue_create(communicator, peer, pushes ? HETCOMM_QUEUE_PUSH : HETCOMM_QUEUE_PULL,
                             &terms, &queue_),
        "creating a queue");
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() { tools::require(hetcomm_queue_destroy(queue_), "destroying a queue"); }

  // Pushes for |seconds|. Returns the bytes per second that were sent after the first tenth of that
  // time.
  double push_for(double seconds) {
    const double start = now_s();
    const double counted_from = start + seconds / 10;
    double bytes = 0;
    double now = start;
    while (now < start + seconds) {
      const uint64_t left = requests_.size() == depth_ ? take() : 0;
      now = now_s();
      if (now > counted_from) bytes += static_cast<double>(left);
      post(buffers_[0].size());
    }
    while (!requests_.empty()) (void)take();
    post(0);
    (void)take();
    return bytes / (now - counted_from);
  }
  void pull() {
    bool more = true;
    while (more) {
      while (requests_.size() < depth_) post(buffers_[0].size());
      more = take() > 0;
    }
    // The pulls that were posted ahead get no items, so they are cancelled.
    tools::require(hetcomm_queue_cancel(queue_), "ending pulls");
    for (hetcomm_request_t* request : requests_) {
      hetcomm_completion_t completion{};
      tools::require(hetcomm_request_wait(request, HETCOMM_TIMEOUT_INFINITE, &completion),
                     "waiting");
    }
    requests_.clear();
  }

 private:
  void post(uint64_t bytes) {
    hetcomm_request_t* request = nullptr;
    const hetcomm_buffer_t buffer =
        hetcomm_buffer_host(buffers_[next_++ % buffers_.size()].data(), bytes);
    tools::require(pushes_ ? hetcomm_queue_push(queue_, buffer, nullptr, &request)
                           : hetcomm_queue_pull(queue_, buffer, nullptr, &request),
                   "starting an item");
    requests_.push_back(request);
  }
  uint64_t take() {
    const hetcomm_completion_t completion = tools::wait(requests_.front());
    requests_.pop_front();
    return completion.bytes_received;
  }

  const bool pushes_;
  const size_t depth_;
  std::vector<std::vector<std::byte>> buffers_;
  size_t next_ = 0;
  hetcomm_queue_t* queue_ = nullptr;
  std::deque<hetcomm_request_t*> requests_;
};

// Returns the rank that pulls from queue |i|.
int puller_of(size_t i, int ranks) {
  return 1 + static_cast<int>(i % static_cast<size_t>(ranks - 1));
}

// Runs all queues of this rank at the same time, one thread for each. Returns the rates on rank 0.
std::vector<double> run_pass(hetcomm_communicator_t* communicator, int rank, int ranks,
                             const ShareOptions& options) {
  const bool pushes = rank == 0;
  std::vector<std::unique_ptr<End>> ends;
  for (size_t i = 0; i < options.weights.size(); ++i) {
    const int puller = puller_of(i, ranks);
    if (!pushes && puller != rank) continue;
    ends.push_back(std::make_unique<End>(communicator, pushes ? puller : 0, pushes, options,
                                         options.weights[i], i + 1));
  }
  tools::require(hetcomm_communicator_barrier(communicator, HETCOMM_TIMEOUT_INFINITE), "meeting");
  std::vector<double> rates(ends.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ends.size(); ++i) {
    threads.emplace_back([&, i] {
      if (pushes) {
        rates[i] = ends[i]->push_for(options.seconds);
      } else {
        ends[i]->pull();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  tools::require(hetcomm_communicator_barrier(communicator, HETCOMM_TIMEOUT_INFINITE), "meeting");
  return rates;
}

}  // namespace

std::vector<ShareRow> measure_share(tools::Launcher launcher, const Work& work,
                                    const ShareOptions& options,
                                    const std::function<void(const std::string&)>& progress) {
  Work threaded = work;
  threaded.progress = "thread";
  tools::Session session(launcher, 0, session_options(threaded));
  if (session.ranks() < 2) tools::fail("shares are measured between two ranks or more");
  hetcomm_communicator_t* const communicator = session.create_communicator("queue", work.transport);
  std::vector<std::vector<double>> rates(options.weights.size());
  for (int round = 0; round < options.rounds; ++round) {
    progress(fmt::format("share, round {} of {}", round + 1, options.rounds));
    const std::vector<double> found =
        run_pass(communicator, session.rank(), session.ranks(), options);
    if (session.rank() != 0) continue;
    for (size_t i = 0; i < found.size(); ++i) rates[i].push_back(found[i]);
  }
  session.destroy_communicator(communicator);
  if (session.rank() != 0) return {};
  std::vector<ShareRow> rows;
  const auto all = std::accumulate(options.weights.begin(), options.weights.end(), uint64_t{0});
  double sum = 0;
  for (size_t i = 0; i < rates.size(); ++i) {
    rows.push_back({.peer = puller_of(i, session.ranks()),
                    .weight = options.weights[i],
                    .item_bytes = options.item_bytes,
                    .bytes_per_second = hetcomm::present::median(rates[i]),
                    .wanted = options.weights[i] / static_cast<double>(all)});
    sum += rows.back().bytes_per_second;
  }
  for (ShareRow& row : rows) row.share = sum > 0 ? row.bytes_per_second / sum : 0;
  return rows;
}

std::string share_table(const std::vector<ShareRow>& rows) {
  std::string text =
      "# What each queue from rank 0 gets\n"
      "rank weight      bytes      MB/s    share   wanted\n";
  for (const ShareRow& row : rows) {
    text +=
        fmt::format("{:<4} {:<6} {:>10} {:>9.2f} {:>7.1f}% {:>7.1f}%\n", row.peer, row.weight,
                    row.item_bytes, row.bytes_per_second / 1e6, 100 * row.share, 100 * row.wanted);
  }
  return text;
}

std::string share_json(const std::vector<ShareRow>& rows) {
  Json list = Json::array();
  for (const ShareRow& row : rows) {
    Json json;
    json["test"] = "queue";
    json["pattern"] = "share";
    json["rank"] = row.peer;
    json["weight"] = row.weight;
    json["item_bytes"] = row.item_bytes;
    json["bytes_per_second"] = row.bytes_per_second;
    json["share"] = row.share;
    json["wanted"] = row.wanted;
    list.push_back(std::move(json));
  }
  return list.dump(2) + "\n";
}

}  // namespace bench
