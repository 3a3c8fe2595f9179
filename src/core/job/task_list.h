// Holds a job's work in progress: tasks that need a call in every pass, and quiet tasks, which
// request a call when they have something to do. Callers hold the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/job/job_member.h"
#include "src/core/progress/engine.h"
#include "transports/transport.h"

namespace hetcomm {

class TaskList final : public Driven {
 public:
  explicit TaskList(Engine& engine) : engine_(engine) {}
  TaskList(const TaskList&) = delete;
  TaskList& operator=(const TaskList&) = delete;

  // Adds |task|. May throw std::bad_alloc.
  void add(JobTask& task) HETCOMM_UNDER_BATON { tasks_.push_back(&task); }
  void remove(JobTask& task) HETCOMM_UNDER_BATON { std::erase(tasks_, &task); }
  void add(QuietTask& task) HETCOMM_UNDER_BATON;
  void remove(QuietTask& task) HETCOMM_UNDER_BATON;
  // Schedules |task|, which is in the list, for a call in the next pass.
  void note_ready(QuietTask& task) HETCOMM_UNDER_BATON;

  bool empty() const HETCOMM_UNDER_BATON { return tasks_.empty() && quiet_.empty(); }
  // Returns whether a pass would do any work.
  bool ready() const HETCOMM_UNDER_BATON;
  // Calls the tasks. A task removes itself from the list when it has no work left.
  int progress() override HETCOMM_UNDER_BATON;
  void tick(uint64_t now_ns) override HETCOMM_UNDER_BATON;
  uint64_t next_timer_ns() const override HETCOMM_UNDER_BATON;
  [[nodiscard]] bool prepare_sleep(Sleep sleep) override HETCOMM_UNDER_BATON;
  bool may_sleep_on() const override HETCOMM_UNDER_BATON;
  void finish_sleep() override HETCOMM_UNDER_BATON;

 private:
  void take_out_of_ready(QuietTask& task) HETCOMM_UNDER_BATON;
  void look_for_pause() HETCOMM_UNDER_BATON;

  Engine& engine_;
  std::vector<JobTask*> tasks_;
  std::vector<QuietTask*> quiet_;
  QuietTask* first_ready_ = nullptr;
  QuietTask* last_ready_ = nullptr;
  size_t ready_count_ = 0;
  // The time of the program's last call to the library. Up to date only while there are quiet tasks
  // and no progress thread.
  uint64_t seen_ns_ = 0;
};

}  // namespace hetcomm
