// ProfileBook holds the profiles that other ranks have sent. The control thread receives them, and
// the job reads them. A rank sends its profile before it connects, so the job finds the profile
// here even if it has not read its mail yet.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace hetcomm::liveness {

class ProfileBook {
 public:
  void put(int rank, std::string profile) {
    const std::lock_guard lock(mutex_);
    profiles_[rank] = std::move(profile);
  }
  // Returns the profile of |rank|, or an empty string if none has arrived since it was last
  // removed.
  std::string find(int rank) {
    const std::lock_guard lock(mutex_);
    const auto found = profiles_.find(rank);
    return found != profiles_.end() ? found->second : std::string();
  }
  void remove(int rank) {
    const std::lock_guard lock(mutex_);
    profiles_.erase(rank);
  }

 private:
  std::mutex mutex_;
  std::map<int, std::string> profiles_;  // guarded by mutex_
};

}  // namespace hetcomm::liveness
