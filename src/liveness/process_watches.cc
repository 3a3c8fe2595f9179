#include "src/liveness/process_watches.h"

#include <utility>

namespace hetcomm::liveness {

class ProcessWatches::Watch final : public Watcher {
 public:
  Watch(ProcessWatches& owner, int rank, UniqueFd process)
      : owner_(owner), rank_(rank), process_(std::move(process)) {}
  ~Watch() { stop(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  bool start() {
    is_watched_ = owner_.poller_.add(process_.get(), EPOLLIN, *this).ok();
    return is_watched_;
  }
  void stop() {
    if (is_watched_) owner_.poller_.remove(process_.get(), *this);
    is_watched_ = false;
  }

 private:
  void on_events(uint32_t /*events*/) override { owner_.handler_.on_exit(rank_); }

  ProcessWatches& owner_;
  const int rank_;
  const UniqueFd process_;
  bool is_watched_ = false;
};

ProcessWatches::ProcessWatches(Poller& poller, ProcessHandler& handler)
    : poller_(poller), handler_(handler) {}

ProcessWatches::~ProcessWatches() = default;

void ProcessWatches::sweep() { forgotten_.clear(); }

void ProcessWatches::watch(int rank, UniqueFd process) {
  auto watch = std::make_unique<Watch>(*this, rank, std::move(process));
  if (!watch->start()) return;
  forget(rank);
  watched_.emplace(rank, std::move(watch));
}

void ProcessWatches::forget(int rank) {
  const auto found = watched_.find(rank);
  if (found == watched_.end()) return;
  found->second->stop();
  forgotten_.push_back(std::move(found->second));
  watched_.erase(found);
}

}  // namespace hetcomm::liveness
