// Observer is the interface through which a judge reports to its owner.
#pragma once

#include <string>

#include "src/liveness/frame.h"

namespace hetcomm::liveness {

// An observer receives decisions, news and letters. It never calls the judge.
class Observer {
 public:
  // Reports that all neighbours are connected.
  virtual void on_ready() = 0;
  virtual void on_dead(int rank, const std::string& why) = 0;
  virtual void on_left(int rank) = 0;
  // Reports that the other ranks consider this rank dead, so it cannot continue.
  virtual void on_declared_dead(const std::string& why) = 0;
  // Reports a kAborted or kFailed from |notice.subject|.
  virtual void on_notice(const Frame& notice) = 0;
  virtual void on_letter(int from, const Frame& letter) = 0;
  // Reports, after inquire(), that other ranks have recently heard from |rank|.
  virtual void on_vouch(int rank) = 0;
  // Reports, repeatedly, that |rank| is suspected. If data has arrived from |rank|, the owner calls
  // Judge::on_data() later.
  virtual void on_suspect(int rank) = 0;

 protected:
  ~Observer() = default;
};

}  // namespace hetcomm::liveness
