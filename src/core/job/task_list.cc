#include "src/core/job/task_list.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "src/base/baton_role.h"
#include "src/system/clock.h"

namespace hetcomm {

namespace {

constexpr uint64_t kPauseNs = 1'000'000'000;

}  // namespace

// --- quiet tasks ----------------------------------------------------------------

void TaskList::add(QuietTask& task) {
  if (quiet_.empty()) seen_ns_ = now_ns();
  look_for_pause();  // a pause concerns only the tasks that are already in the list
  quiet_.push_back(&task);
  task.hook.index = quiet_.size() - 1;
}

void TaskList::remove(QuietTask& task) {
  if (task.hook.is_ready) take_out_of_ready(task);
  QuietTask& last = *quiet_.back();
  quiet_[task.hook.index] = &last;
  last.hook.index = task.hook.index;
  quiet_.pop_back();
}

void TaskList::note_ready(QuietTask& task) {
  QuietTask::ListHook& own = task.hook;
  if (std::exchange(own.is_ready, true)) return;
  own.next = nullptr;
  own.previous = last_ready_;
  (last_ready_ != nullptr ? last_ready_->hook.next : first_ready_) = &task;
  last_ready_ = &task;
  ++ready_count_;
}

void TaskList::take_out_of_ready(QuietTask& task) {
  QuietTask::ListHook& own = task.hook;
  own.is_ready = false;
  --ready_count_;
  (own.previous != nullptr ? own.previous->hook.next : first_ready_) = own.next;
  (own.next != nullptr ? own.next->hook.previous : last_ready_) = own.previous;
}

// Without a progress thread, nothing makes progress between two calls of the program. Detects long
// pauses between calls, and notifies the quiet tasks.
void TaskList::look_for_pause() {
  if (engine_.threaded()) return;
  const uint64_t now = engine_.coarse_now();
  const uint64_t pause_ns = now - std::min(now, std::exchange(seen_ns_, std::max(seen_ns_, now)));
  if (pause_ns < kPauseNs) return;
  for (QuietTask* const task : quiet_) task->note_pause(pause_ns);
}

// --- all tasks ------------------------------------------------------------------

bool TaskList::ready() const {
  return first_ready_ != nullptr ||
         std::any_of(tasks_.begin(), tasks_.end(),
                     [](const JobTask* task) HETCOMM_UNDER_BATON { return task->ready(); });
}

int TaskList::progress() {
  int moved = 0;
  for (size_t i = tasks_.size(); i-- > 0;) {
    if (i < tasks_.size()) moved += tasks_[i]->progress();
  }
  if (!quiet_.empty()) look_for_pause();
  // Tasks that become ready from here on are called in the next pass.
  for (size_t left = ready_count_; left > 0 && first_ready_ != nullptr; --left) {
    QuietTask& task = *first_ready_;
    take_out_of_ready(task);
    moved += task.progress();
  }
  return moved;
}

void TaskList::tick(uint64_t now_ns) {
  for (size_t i = 0; i < tasks_.size(); ++i) tasks_[i]->tick(now_ns);
}

uint64_t TaskList::next_timer_ns() const {
  uint64_t next = kForever;
  for (const JobTask* task : tasks_) next = std::min(next, task->next_timer_ns());
  return next;
}

bool TaskList::prepare_sleep(Sleep sleep) {
  bool quiet = first_ready_ == nullptr;
  for (size_t i = tasks_.size(); i-- > 0;) {
    if (i < tasks_.size()) {
      quiet = tasks_[i]->prepare_sleep(sleep) && quiet;
    }
  }
  return quiet;
}

bool TaskList::may_sleep_on() const {
  return first_ready_ == nullptr &&
         std::all_of(tasks_.begin(), tasks_.end(),
                     [](const JobTask* task) HETCOMM_UNDER_BATON { return task->may_sleep_on(); });
}

void TaskList::finish_sleep() {
  if (!quiet_.empty()) seen_ns_ = now_ns();
  for (JobTask* task : tasks_) task->finish_sleep();
}

}  // namespace hetcomm
