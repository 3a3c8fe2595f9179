// Work of a job that is under way and needs a call in every pass. Under the baton.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/job/job_member.h"
#include "transports/transport.h"

namespace hetcomm {

class TaskList {
 public:
  void add(JobTask& task) HETCOMM_UNDER_BATON { tasks_.push_back(&task); }
  void remove(JobTask& task) HETCOMM_UNDER_BATON { std::erase(tasks_, &task); }

  bool empty() const HETCOMM_UNDER_BATON { return tasks_.empty(); }
  // A pass would find something to do.
  bool ready() const HETCOMM_UNDER_BATON;
  // A task takes itself out of the list when it has nothing left.
  int progress() HETCOMM_UNDER_BATON;
  void tick(uint64_t now_ns) HETCOMM_UNDER_BATON;
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON;
  bool prepare_sleep(Sleep sleep) HETCOMM_UNDER_BATON;
  bool may_sleep_on() const HETCOMM_UNDER_BATON;
  void finish_sleep() HETCOMM_UNDER_BATON;

 private:
  std::vector<JobTask*> tasks_;
};

}  // namespace hetcomm
