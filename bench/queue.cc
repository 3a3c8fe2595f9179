#include "bench/queue.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "bench/compute.h"
#include "bench/loops/samples.h"
#include "src/present/statistics.h"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;

// Returns the microseconds of processor time that this process has used.
double processor_us() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

// Buffers holds buffers of one size, on a device or on the host.
class Buffers {
 public:
  Buffers(const tools::Session& session, int32_t device, int count, uint64_t bytes) {
    for (int i = 0; i < count; ++i) {
      if (device == HETCOMM_DEVICE_HOST) {
        host_.emplace_back(bytes, std::byte{1});
        all_.push_back(hetcomm_buffer_host(host_.back().data(), bytes));
        continue;
      }
      tools::require(
          hetcomm_memory_allocate(session.context(), device, bytes, &memories_.emplace_back()),
          "allocating device memory");
      all_.push_back(hetcomm_buffer_memory(memories_.back(), 0, bytes));
    }
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() {
    for (hetcomm_memory_t* memory : memories_)
      tools::require(hetcomm_memory_destroy(memory), "freeing");
  }
  // Returns the next buffer in rotation.
  const hetcomm_buffer_t& next() { return all_[next_++ % all_.size()]; }

 private:
  std::deque<std::vector<std::byte>> host_;
  std::vector<hetcomm_memory_t*> memories_;
  std::vector<hetcomm_buffer_t> all_;
  size_t next_ = 0;
};

// A Way is one direction of the transfers between the two ranks, through a queue or with messages.
class Way {
 public:
  Way(hetcomm_communicator_t* communicator, int peer, bool sends, uint64_t bytes, int depth,
      uint64_t tag, const tools::Session& session, int32_t device)
      : communicator_(communicator),
        peer_(peer),
        sends_(sends),
        tag_(tag),
        depth_(depth),
        buffers_(session, device, depth + 1, bytes) {
    const hetcomm_queue_options_t options{.struct_size = sizeof(options),
                                          .tag = tag,
                                          .max_item_bytes = bytes,
                                          .depth = static_cast<uint32_t>(depth),
                                          .weight = 0,
                                          .max_bytes_per_second = 0};
    tools::require(
        hetcomm_queue_create(communicator, peer, sends ? HETCOMM_QUEUE_PUSH : HETCOMM_QUEUE_PULL,
                             &options, &queue_),
        "creating a queue");
  }
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;
  ~Way() { tools::require(hetcomm_queue_destroy(queue_), "destroying a queue"); }

  // Begins a pass of |items| through the queue. The receiving rank posts up to depth_ pulls ahead
  // of take().
  void begin(int items) {
    left_ = sends_ ? 0 : items;
    while (!sends_ && left_ > 0 && static_cast<int>(running_.size()) < depth_) post();
  }
  void push() {
    if (static_cast<int>(running_.size()) == depth_) wait_for_oldest();
    post();
  }
  // Waits for the next item, and then posts a further pull if there are pulls left.
  void take() {
    wait_for_oldest();
    if (left_ > 0) post();
  }
  void finish() {
    while (!running_.empty()) wait_for_oldest();
  }

  // Sends one item as a message, which the peer receives with receive_now() or start_receiving().
  void send_now() {
    hetcomm_request_t* request = nullptr;
    tools::require(hetcomm_send(communicator_, peer_, tag_, next_buffer(), nullptr, &request),
                   "sending");
    tools::wait(request);
  }
  hetcomm_request_t* start_receiving() {
    hetcomm_request_t* request = nullptr;
    tools::require(hetcomm_recv(communicator_, peer_, tag_, HETCOMM_EXACT_TAG, next_buffer(),
                                nullptr, &request),
                   "receiving");
    return request;
  }
  void receive_now() { tools::wait(start_receiving()); }

 private:
  hetcomm_buffer_t next_buffer() { return buffers_.next(); }
  void post() {
    hetcomm_request_t* request = nullptr;
    if (sends_) {
      tools::require(hetcomm_queue_push(queue_, next_buffer(), nullptr, &request), "pushing");
    } else {
      tools::require(hetcomm_queue_pull(queue_, next_buffer(), nullptr, &request), "pulling");
      --left_;
    }
    running_.push_back(request);
  }
  void wait_for_oldest() {
    tools::wait(running_.front());
    running_.pop_front();
  }

  hetcomm_communicator_t* const communicator_;
  const int peer_;
  const bool sends_;
  const uint64_t tag_;
  const int depth_;
  Buffers buffers_;
  hetcomm_queue_t* queue_ = nullptr;
  std::deque<hetcomm_request_t*> running_;
  int left_ = 0;  // pulls not yet posted
};

// Ways holds both directions, from the perspective of one rank.
struct Ways {
  Ways(hetcomm_communicator_t* communicator, const tools::Session& session, int32_t device,
       const QueueOptions& options)
      : first(session.rank() == 0),
        forward(communicator, 1 - session.rank(), first, options.item_bytes, options.depth, 1,
                session, device),
        backward(communicator, 1 - session.rank(), !first, options.item_bytes, options.depth, 2,
                 session, device) {}
  const bool first;
  Way forward;
  Way backward;
};

class Pass {
 public:
  Pass(hetcomm_communicator_t* communicator, Ways& ways, int items)
      : communicator_(communicator), ways_(ways), items_(items) {}

  // stream() and pipeline() return the microseconds per item at this rank.
  double stream(Compute& compute, bool queued) {
    return timed([&] {
      if (queued) ways_.forward.begin(items_);
      for (int i = 0; i < items_; ++i) {
        if (!ways_.first) queued ? ways_.forward.take() : ways_.forward.receive_now();
        compute.run();
        if (ways_.first) queued ? ways_.forward.push() : ways_.forward.send_now();
        note_item();
      }
      ways_.forward.finish();
    });
  }
  double pipeline(Compute& compute, bool queued, int warmup) {
    return timed([&] {
      if (!queued) {
        ways_.first ? first_stage_by_messages(compute) : last_stage_by_messages(compute);
        return;
      }
      ways_.forward.begin(items_);
      ways_.backward.begin(items_);
      ways_.first ? first_stage(compute, warmup) : last_stage(compute);
      ways_.forward.finish();
      ways_.backward.finish();
    });
  }
  // Transfers one item at a time, back and forth. Returns the one-way time in microseconds.
  double one_way() {
    return timed([&] {
             ways_.forward.begin(items_);
             ways_.backward.begin(items_);
             for (int i = 0; i < items_; ++i) {
               if (ways_.first) ways_.forward.push();
               if (!ways_.first) ways_.forward.take();
               if (!ways_.first) ways_.backward.push();
               if (ways_.first) ways_.backward.take();
               note_item();
             }
             ways_.forward.finish();
             ways_.backward.finish();
           }) /
           2;
  }

 private:
  void first_stage(Compute& compute, int warmup) {
    for (int i = 0; i < items_ + warmup; ++i) {
      if (i >= warmup) {
        ways_.backward.take();
        compute.run(0.5);
        note_item();
      }
      if (i < items_) {
        compute.run(0.5);
        ways_.forward.push();
      }
    }
  }
  void last_stage(Compute& compute) {
    for (int i = 0; i < items_; ++i) {
      ways_.forward.take();
      compute.run();
      ways_.backward.push();
      note_item();
    }
  }
  // Exchanges items between two stages that send to each other at the same time. Each stage posts
  // its receive together with the send, since blocking sends in both directions would deadlock.
  static void exchange(Way& out, Way& in) {
    hetcomm_request_t* const receive = in.start_receiving();
    out.send_now();
    tools::wait(receive);
  }
  void first_stage_by_messages(Compute& compute) {
    for (int i = 0; i < items_; ++i) {
      compute.run(0.5);
      if (i == 0) {
        ways_.forward.send_now();
        continue;
      }
      exchange(ways_.forward, ways_.backward);
      compute.run(0.5);
      note_item();
    }
    ways_.backward.receive_now();
    compute.run(0.5);
    note_item();
  }
  void last_stage_by_messages(Compute& compute) {
    ways_.forward.receive_now();
    for (int i = 0; i < items_; ++i) {
      compute.run();
      if (i + 1 < items_) {
        exchange(ways_.backward, ways_.forward);
      } else {
        ways_.backward.send_now();
      }
      note_item();
    }
  }
  void note_item() { done_us_.push_back(now_us()); }
  // Returns this rank's microseconds per item, excluding the first items, which fill the pipeline.
  template <typename Body>
  double timed(Body&& body) {
    done_us_.clear();
    tools::require(hetcomm_communicator_barrier(communicator_, HETCOMM_TIMEOUT_INFINITE),
                   "meeting");
    body();
    tools::require(hetcomm_communicator_barrier(communicator_, HETCOMM_TIMEOUT_INFINITE),
                   "meeting");
    const size_t first = std::min<size_t>(done_us_.size() / 4, 16);
    return (done_us_.back() - done_us_[first]) / static_cast<double>(done_us_.size() - 1 - first);
  }

  hetcomm_communicator_t* const communicator_;
  Ways& ways_;
  const int items_;
  std::vector<double> done_us_;  // when each item was done
};

int items_for(double seconds, double period_us, int least) {
  return static_cast<int>(
      std::clamp(seconds * 1e6 / std::max(period_us, 1.0), static_cast<double>(least), 20000.0));
}

}  // namespace

double QueueRow::ideal_us() const {
  const double both = compute_us + communication_us;
  const double round_trip = warmup > 0 ? 2 * both / warmup : 0;
  // A computation that keeps its core busy is delayed by the processor time of the transfer.
  const double busy = compute == "burn" ? compute_us + processor_us : compute_us;
  return std::max({busy, round_trip, communication_us});
}

double QueueRow::ideal_gain() const {
  return ideal_us() > 0 ? (compute_us + communication_us) / ideal_us() : 0;
}

double QueueRow::overlap() const {
  if (communication_us <= 0) return 0;
  const double exposed = queue_us - compute_us;
  return std::clamp(100 * (1 - exposed / communication_us), 0.0, 100.0);
}

std::vector<QueueRow> measure_queue(tools::Launcher launcher, const Work& work,
                                    const QueueOptions& options,
                                    const std::function<void(const std::string&)>& progress) {
  Work threaded = work;
  threaded.progress = "thread";
  tools::Session session(launcher, 0, session_options(threaded));
  if (session.ranks() != 2) tools::fail("queue is measured between two ranks: start two");
  hetcomm_communicator_t* const communicator = session.create_communicator("queue", work.transport);
  std::vector<QueueRow> rows;
  {
    Ways ways(communicator, session,
              session.find_device(session.rank() == 0 ? work.first_memory : work.second_memory),
              options);
    (void)Pass(communicator, ways, 5).one_way();
    const double rough_us = tools::largest(communicator, Pass(communicator, ways, 5).one_way());
    const int probes = items_for(options.seconds / 2, 2 * rough_us, 5);
    std::vector<double> one_way;
    for (int i = 0; i < 3; ++i) {
      progress(fmt::format("one item of {} bytes alone", options.item_bytes));
      one_way.push_back(tools::largest(communicator, Pass(communicator, ways, probes).one_way()));
    }
    const double communication_us = hetcomm::present::median(one_way);
    for (const std::string& pattern : options.patterns) {
      for (const std::string& kind : options.computes) {
        for (const double ratio : options.ratios) {
          Compute compute(kind == "burn", ratio * communication_us);
          const double compute_us = tools::largest(communicator, compute.measured_us());
          const std::vector<int> warmups =
              pattern == "1f1b" ? options.warmups : std::vector<int>{0};
          for (const int warmup : warmups) {
            QueueRow row{.pattern = pattern,
                         .compute = kind,
                         .warmup = warmup,
                         .memory = memory_text(work),
                         .item_bytes = options.item_bytes,
                         .compute_us = compute_us,
                         .communication_us = communication_us};
            const int items =
                options.items > 0
                    ? options.items
                    : items_for(options.seconds, compute_us + communication_us, 4 + 8 * warmup);
            Pass pass(communicator, ways, items);
            // Measures the processor time of a transfer during a computation that only sleeps, and
            // sleeps so long that no rank waits for data.
            Compute sleeping(false, std::max(compute_us, 1.5 * communication_us));
            const double before_us = processor_us();
            (void)pass.stream(sleeping, true);
            row.processor_us = tools::largest(communicator, (processor_us() - before_us) / items);
            std::vector<double> by_queue;
            std::vector<double> by_messages;
            for (int round = 0; round < options.rounds; ++round) {
              progress(fmt::format("{} {}, t/c {:.2f}, round {} of {}", pattern, kind, ratio,
                                   round + 1, options.rounds));
              for (const bool queued : {true, false}) {
                const double us = pattern == "stream" ? pass.stream(compute, queued)
                                                      : pass.pipeline(compute, queued, warmup);
                (queued ? by_queue : by_messages).push_back(tools::largest(communicator, us));
              }
            }
            row.queue_us = hetcomm::present::median(by_queue);
            row.baseline_us = hetcomm::present::median(by_messages);
            rows.push_back(row);
          }
        }
      }
    }
    tools::require(hetcomm_communicator_barrier(communicator, HETCOMM_TIMEOUT_INFINITE),
                   "leaving together");
  }
  const bool reports = session.rank() == 0;
  session.destroy_communicator(communicator);
  return reports ? rows : std::vector<QueueRow>{};
}

std::string queue_table(const std::vector<QueueRow>& rows) {
  std::string text =
      "# Times of one item in us. t: computation, c: one way alone, cpu: processor time of an "
      "item\n"
      "# ideal: overlap without cost; gain: baseline over queue, and the ideal one\n"
      "pattern    compute      bytes         t         c       cpu     queue     ideal  baseline"
      "   gain  ideal  overlap\n";
  for (const QueueRow& row : rows) {
    const std::string pattern =
        row.warmup > 0 ? fmt::format("{} w={}", row.pattern, row.warmup) : row.pattern;
    text += fmt::format(
        "{:<10} {:<7} {:>10} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>6.2f} "
        "{:>6.2f} "
        "{:>7.1f}%\n",
        pattern, row.compute, row.item_bytes, row.compute_us, row.communication_us,
        row.processor_us, row.queue_us, row.ideal_us(), row.baseline_us, row.gain(),
        row.ideal_gain(), row.overlap());
  }
  return text;
}

std::string queue_osu(const std::vector<QueueRow>& rows) {
  std::string text =
      "# hetcomm queue\n"
      "# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)\n";
  for (const QueueRow& row : rows) {
    text += fmt::format("{:<10} {:>17.2f} {:>17.2f} {:>17.2f} {:>17.2f}\n", row.item_bytes,
                        row.queue_us, row.compute_us, row.communication_us, row.overlap());
  }
  return text;
}

std::string queue_json(const std::vector<QueueRow>& rows) {
  Json list = Json::array();
  for (const QueueRow& row : rows) {
    Json json;
    json["test"] = "queue";
    json["pattern"] = row.pattern;
    json["compute"] = row.compute;
    if (row.warmup > 0) json["warmup"] = row.warmup;
    json["memory"] = row.memory;
    json["item_bytes"] = row.item_bytes;
    json["compute_us"] = row.compute_us;
    json["communication_us"] = row.communication_us;
    json["processor_us"] = row.processor_us;
    json["queue_us"] = row.queue_us;
    json["ideal_us"] = row.ideal_us();
    json["baseline_us"] = row.baseline_us;
    json["gain"] = row.gain();
    json["ideal_gain"] = row.ideal_gain();
    json["overlap_percent"] = row.overlap();
    list.push_back(std::move(json));
  }
  return list.dump(2) + "\n";
}

}  // namespace bench
