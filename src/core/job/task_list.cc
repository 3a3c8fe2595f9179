#include "src/core/job/task_list.h"

#include <algorithm>
#include <cstddef>

#include "src/base/baton_role.h"
#include "src/base/clock.h"

namespace hetcomm {

bool TaskList::ready() const {
  return std::any_of(tasks_.begin(), tasks_.end(),
                     [](const JobTask* task) HETCOMM_UNDER_BATON { return task->ready(); });
}

int TaskList::progress() {
  int moved = 0;
  for (size_t i = tasks_.size(); i-- > 0;) {
    if (i < tasks_.size()) moved += tasks_[i]->progress();
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
  bool quiet = true;
  for (size_t i = tasks_.size(); i-- > 0;) {
    if (i < tasks_.size()) {
      quiet = tasks_[i]->prepare_sleep(sleep == Sleep::kShort) && quiet;
    }
  }
  return quiet;
}

bool TaskList::may_sleep_on() const {
  return std::all_of(tasks_.begin(), tasks_.end(),
                     [](const JobTask* task) HETCOMM_UNDER_BATON { return task->may_sleep_on(); });
}

void TaskList::finish_sleep() {
  for (JobTask* task : tasks_) task->finish_sleep();
}

}  // namespace hetcomm
