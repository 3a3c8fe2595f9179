// Watches the processes of other ranks on this host. A process remains watched after its connection
// has broken. Only the control thread uses this class.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "src/net/poller.h"
#include "src/system/unique_fd.h"

namespace hetcomm::liveness {

class ProcessHandler {
 public:
  // Handles the exit of |rank|'s process. The kernel closes the files of a process before it
  // reports the exit, so everything that the process sent has arrived.
  virtual void on_exit(int rank) = 0;

 protected:
  ~ProcessHandler() = default;
};

class ProcessWatches {
 public:
  // |poller| and |handler| must outlive this object.
  ProcessWatches(Poller& poller, ProcessHandler& handler);
  ~ProcessWatches();
  ProcessWatches(const ProcessWatches&) = delete;
  ProcessWatches& operator=(const ProcessWatches&) = delete;

  // Watches |process|, a descriptor of the running process of |rank| (process_descriptor.h). It
  // replaces an earlier descriptor. Does nothing if the poller cannot add it.
  void watch(int rank, UniqueFd process);
  // Stops watching |rank|'s process. Can be called inside ProcessHandler::on_exit().
  void forget(int rank);
  // Destroys forgotten watches. Must not be called inside ProcessHandler::on_exit().
  void sweep();
  bool has_to_sweep() const { return !forgotten_.empty(); }

 private:
  class Watch;
  Poller& poller_;
  ProcessHandler& handler_;
  std::map<int, std::unique_ptr<Watch>> watched_;
  std::vector<std::unique_ptr<Watch>> forgotten_;
};

}  // namespace hetcomm::liveness
