// Work of a job that is under way and needs a call in every pass. Under the baton.
#pragma once

#include <cstdint>
#include <vector>

#include "src/core/job/job_member.h"
#include "transports/transport.h"

namespace hetcomm {

class TaskList {
 public:
  void add(JobTask& task) { tasks_.push_back(&task); }
  void remove(JobTask& task) { std::erase(tasks_, &task); }

  bool empty() const { return tasks_.empty(); }
  // A pass would find something to do.
  bool ready() const;
  // A task takes itself out of the list when it has nothing left.
  int progress();
  void tick(uint64_t now_ns);
  uint64_t next_timer_ns() const;
  bool prepare_sleep(Sleep sleep);
  bool may_sleep_on() const;
  void finish_sleep();

 private:
  std::vector<JobTask*> tasks_;
};

}  // namespace hetcomm
