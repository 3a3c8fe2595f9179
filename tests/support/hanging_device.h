// A device whose copies can be made to hang. Either the copies do not finish, or their completion
// is not signalled, until the test calls let_go(). Hanging copies access their memory only then.
//
// As with many vendors, every call that may block waits for all work in its streams. The CPU cannot
// access device addresses. Any thread may call any function.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <hetcomm/datatype.h>
#include <hetcomm/device_plugin.h>

namespace hetcomm::test {

class HangingDevice {
 public:
  // Copies hang before they begin, or complete while only their events hang.
  enum class Way : uint8_t { kCopies, kEvents };

  // Creates a device. If |unified|, it copies from any host memory equally fast.
  explicit HangingDevice(bool unified = false) : unified_(unified) {}
  HangingDevice(const HangingDevice&) = delete;
  HangingDevice& operator=(const HangingDevice&) = delete;

  // Returns the device for hetcomm_device_add(). This object must outlive the context, which calls
  // destroy at most once.
  hetcomm_device_t device() { return {&table(), this}; }

  // Lets |copies| more copies succeed. All later ones hang until let_go().
  void hang(Way way, int64_t copies = 0) {
    const std::lock_guard lock(mutex_);
    way_ = way;
    copies_left_ = copies;
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    copies_left_ = INT64_MAX;
    hangs_ = false;
    run_all();
  }
  // Returns whether a copy hangs.
  bool hangs() const { return hangs_; }
  bool is_destroyed() const { return is_destroyed_; }
  // Reads or writes device memory at |address| immediately, even while copies hang.
  void peek(const void* address, void* host, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    std::memcpy(host, at(address, 0), bytes);
  }
  void poke(const void* address, const void* host, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    std::memcpy(at(address, 0), host, bytes);
  }
  // Returns the number of allocations that have not been freed.
  size_t allocations() {
    const std::lock_guard lock(mutex_);
    return memory_.size();
  }
  // Returns whether hanging copies will write any of the |bytes| bytes starting at |host|.
  bool will_write(const std::byte* host, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    for (const auto& stream : streams_) {
      for (const Work& work : stream->works) {
        if (work.host < host + bytes && host < work.host + work.bytes) return true;
      }
    }
    return false;
  }
  // Returns the host addresses that copies have written or will write, in call order.
  std::vector<const std::byte*> targets() {
    const std::lock_guard lock(mutex_);
    return targets_;
  }

 private:
  struct Work {
    std::function<void()> run;
    std::byte* host = nullptr;  // memory that the copy writes
    uint64_t bytes = 0;
    bool is_hold = false;
    bool is_over = false;  // for holds
  };
  struct Stream {
    std::deque<Work> works;
    uint64_t begun = 0;  // number of work items submitted
    uint64_t done = 0;
  };
  struct Event {
    Stream* stream;
    uint64_t count;
    bool hangs;  // although the copies complete
    std::vector<int> files;
  };
  struct Hold {
    Stream* stream;
    uint64_t number;
  };
  static constexpr uint64_t kTag = uint64_t{0xd7} << 56;

  static HangingDevice& self(void* device) { return *static_cast<HangingDevice*>(device); }
  static std::byte* at(const void* address, uint64_t offset) {
    return reinterpret_cast<std::byte*>((reinterpret_cast<uint64_t>(address) & ~kTag) + offset);
  }
  bool is_done(const Event& event) const {
    return event.stream->done >= event.count && !(event.hangs && hangs_);
  }
  void run(Stream& stream) {
    while (!stream.works.empty()) {
      Work& work = stream.works.front();
      if (work.is_hold ? !work.is_over : hangs_ && way_ == Way::kCopies) break;
      if (work.run) work.run();
      stream.works.pop_front();
      ++stream.done;
    }
  }
  void run_all() {
    for (const auto& stream : streams_) run(*stream);
    for (const auto& event : events_) {
      if (!is_done(*event)) continue;
      for (const int file : std::exchange(event->files, {})) notify(file);
    }
    changed_.notify_all();
  }
  static void notify(int file) {
    const uint64_t one = 1;
    const ssize_t written = write(file, &one, sizeof(one));
    static_cast<void>(written);
  }
  // Completes all work in the streams.
  void synchronize(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [this] {
      return !hangs_ && std::all_of(streams_.begin(), streams_.end(),
                                    [](const auto& stream) { return stream->works.empty(); });
    });
  }
  hetcomm_status_t submit(void* stream, void* written, uint64_t bytes, std::function<void()> what) {
    const std::lock_guard lock(mutex_);
    if (stream == nullptr) return HETCOMM_INVALID_ARGUMENT;
    if (!hangs_ && copies_left_ != INT64_MAX && copies_left_-- <= 0) hangs_ = true;
    auto& own = *static_cast<Stream*>(stream);
    if (written != nullptr) targets_.push_back(static_cast<std::byte*>(written));
    own.works.push_back({std::move(what), static_cast<std::byte*>(written), bytes});
    ++own.begun;
    run_all();
    return HETCOMM_OK;
  }
  // Calls copy(device, host) for each row.
  template <typename Copy>
  static void for_rows(const void* address, const hetcomm_device_rows_t& rows, const void* host,
                       Copy&& copy) {
    auto* next = static_cast<std::byte*>(const_cast<void*>(host));
    for (uint64_t i = 0; i < rows.extents[0]; ++i) {
      for (uint64_t j = 0; j < rows.extents[1]; ++j) {
        copy(at(address, rows.offset + i * rows.strides[0] + j * rows.strides[1]), next);
        next += rows.row_bytes;
      }
    }
  }
  static uint64_t bytes_of(const hetcomm_device_rows_t& rows) {
    return rows.extents[0] * rows.extents[1] * rows.row_bytes;
  }

  static const hetcomm_device_table_t& table();
  static void fill_memory(hetcomm_device_table_t& table);
  static void fill_streams(hetcomm_device_table_t& table);
  static void fill_copies(hetcomm_device_table_t& table);
  static void fill_user_streams(hetcomm_device_table_t& table);

  const bool unified_;
  std::atomic<bool> hangs_{false};
  std::atomic<bool> is_destroyed_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  // |mutex_| guards the following members:
  Way way_ = Way::kCopies;
  int64_t copies_left_ = INT64_MAX;
  std::map<uint64_t, std::vector<std::byte>> memory_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<const std::byte*> targets_;
};

inline const hetcomm_device_table_t& HangingDevice::table() {
  static const hetcomm_device_table_t made = [] {
    hetcomm_device_table_t table{};
    table.struct_size = sizeof(table);
    table.kind = "hanging";
    table.destroy = [](void* device) {
      std::unique_lock lock(self(device).mutex_);
      self(device).synchronize(lock);
      self(device).is_destroyed_ = true;
    };
    table.name = [](void*) { return "a device that hangs"; };
    table.host_memory_suffices = [](void* device) { return int32_t{self(device).unified_}; };
    fill_memory(table);
    fill_streams(table);
    fill_copies(table);
    fill_user_streams(table);
    return table;
  }();
  return made;
}

inline void HangingDevice::fill_memory(hetcomm_device_table_t& table) {
  table.allocate = [](void* device, uint64_t size, void** out) {
    std::vector<std::byte> memory(std::max<uint64_t>(size, 1));
    const uint64_t address = reinterpret_cast<uint64_t>(memory.data()) | kTag;
    const std::lock_guard lock(self(device).mutex_);
    self(device).memory_.emplace(address, std::move(memory));
    *out = reinterpret_cast<void*>(address);
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.free = [](void* device, void* address) {
    std::unique_lock lock(self(device).mutex_);
    self(device).synchronize(lock);
    self(device).memory_.erase(reinterpret_cast<uint64_t>(address));
  };
  table.find = [](void* device, const void* address, void** out_base, uint64_t* out_size) {
    const auto number = reinterpret_cast<uint64_t>(address);
    const std::lock_guard lock(self(device).mutex_);
    auto found = self(device).memory_.upper_bound(number);
    if (found == self(device).memory_.begin()) return hetcomm_status_t{HETCOMM_NOT_FOUND};
    --found;
    if (number - found->first >= found->second.size()) return hetcomm_status_t{HETCOMM_NOT_FOUND};
    *out_base = reinterpret_cast<void*>(found->first);
    *out_size = found->second.size();
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.pin_host = [](void* device, void*, uint64_t) {
    std::unique_lock lock(self(device).mutex_);
    self(device).synchronize(lock);
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.unpin_host = [](void* device, void*) {
    std::unique_lock lock(self(device).mutex_);
    self(device).synchronize(lock);
  };
}

inline void HangingDevice::fill_streams(hetcomm_device_table_t& table) {
  table.stream_create = [](void* device, void** out) {
    const std::lock_guard lock(self(device).mutex_);
    *out = self(device).streams_.emplace_back(std::make_unique<Stream>()).get();
    return hetcomm_status_t{HETCOMM_OK};
  };
  // The object is kept for its events.
  table.stream_destroy = [](void* device, void*) {
    std::unique_lock lock(self(device).mutex_);
    self(device).synchronize(lock);
  };
  table.event_record = [](void* device, void* stream, void** out) {
    HangingDevice& own = self(device);
    const std::lock_guard lock(own.mutex_);
    auto* const of = static_cast<Stream*>(stream);
    *out = own.events_.emplace_back(std::make_unique<Event>(Event{of, of->begun, own.hangs_, {}}))
               .get();
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.event_query = [](void* device, void* event) {
    const std::lock_guard lock(self(device).mutex_);
    return hetcomm_status_t{self(device).is_done(*static_cast<Event*>(event)) ? HETCOMM_OK
                                                                              : HETCOMM_PENDING};
  };
  table.event_wait = [](void* device, void* event) {
    std::unique_lock lock(self(device).mutex_);
    self(device).changed_.wait(lock,
                               [&] { return self(device).is_done(*static_cast<Event*>(event)); });
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.event_release = [](void* device, void* event) {
    const std::lock_guard lock(self(device).mutex_);
    std::erase_if(self(device).events_, [&](const auto& each) { return each.get() == event; });
  };
  table.event_notify = [](void* device, void* event, int file) {
    const std::lock_guard lock(self(device).mutex_);
    auto& own = *static_cast<Event*>(event);
    if (self(device).is_done(own)) {
      notify(file);
    } else {
      own.files.push_back(file);
    }
    return hetcomm_status_t{HETCOMM_OK};
  };
}

inline void HangingDevice::fill_copies(hetcomm_device_table_t& table) {
  table.copy_to_host = [](void* device, void* stream, void* host, const void* address,
                          uint64_t offset, uint64_t size) {
    return self(device).submit(stream, host, size,
                               [=] { std::memcpy(host, at(address, offset), size); });
  };
  table.copy_from_host = [](void* device, void* stream, void* address, uint64_t offset,
                            const void* host, uint64_t size) {
    return self(device).submit(stream, nullptr, 0,
                               [=] { std::memcpy(at(address, offset), host, size); });
  };
  table.copy_rows_to_host = [](void* device, void* stream, void* host, const void* address,
                               const hetcomm_device_rows_t* given) {
    const hetcomm_device_rows_t rows = *given;
    return self(device).submit(stream, host, bytes_of(rows), [=] {
      for_rows(address, rows, host,
               [&](std::byte* own, std::byte* to) { std::memcpy(to, own, rows.row_bytes); });
    });
  };
  table.copy_rows_from_host = [](void* device, void* stream, void* address,
                                 const hetcomm_device_rows_t* given, const void* host) {
    const hetcomm_device_rows_t rows = *given;
    return self(device).submit(stream, nullptr, 0, [=] {
      for_rows(address, rows, host,
               [&](std::byte* own, std::byte* from) { std::memcpy(own, from, rows.row_bytes); });
    });
  };
  table.copy_rows_between = [](void* device, void* stream, const void* from,
                               const hetcomm_device_rows_t* from_rows, void*, void* to,
                               const hetcomm_device_rows_t* to_rows) {
    if (bytes_of(*from_rows) == 0) return hetcomm_status_t{HETCOMM_OK};
    const hetcomm_device_rows_t source = *from_rows;
    const hetcomm_device_rows_t target = *to_rows;
    return self(device).submit(stream, nullptr, 0, [=] {
      std::vector<std::byte> all(bytes_of(source));
      for_rows(from, source, all.data(),
               [&](std::byte* own, std::byte* next) { std::memcpy(next, own, source.row_bytes); });
      for_rows(to, target, all.data(),
               [&](std::byte* own, std::byte* next) { std::memcpy(own, next, target.row_bytes); });
    });
  };
  table.reduce = [](void* device, void* stream, const hetcomm_device_reduction_t* given) {
    const hetcomm_device_reduction_t what = *given;
    if (what.datatype != HETCOMM_FLOAT32 || what.reduction != HETCOMM_REDUCE_SUM ||
        what.divisor > 1) {
      return hetcomm_status_t{HETCOMM_UNSUPPORTED};
    }
    if (what.elements == 0) return hetcomm_status_t{HETCOMM_OK};
    return self(device).submit(stream, nullptr, 0, [=] {
      for (uint64_t i = 0; i < what.elements; ++i) {
        float one = 0;
        float other = 0;
        std::memcpy(&one, at(what.first, what.first_offset + 4 * i), 4);
        std::memcpy(&other, at(what.second, what.second_offset + 4 * i), 4);
        one += other;
        std::memcpy(at(what.out, what.out_offset + 4 * i), &one, 4);
      }
    });
  };
}

inline void HangingDevice::fill_user_streams(hetcomm_device_table_t& table) {
  table.user_stream_open = [](void*, void* native, void** out) {
    *out = native;
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.user_stream_close = [](void* device, void*) {
    std::unique_lock lock(self(device).mutex_);
    self(device).synchronize(lock);
  };
  table.user_stream_record = table.event_record;
  table.user_stream_hold = [](void* device, void* stream, void** out) {
    const std::lock_guard lock(self(device).mutex_);
    auto& own = *static_cast<Stream*>(stream);
    own.works.push_back({.run = {}, .is_hold = true});
    *out = new Hold{&own, own.begun++};
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.hold_end = [](void* device, void* given) {
    const std::unique_ptr<Hold> hold(static_cast<Hold*>(given));
    const std::lock_guard lock(self(device).mutex_);
    hold->stream->works[hold->number - hold->stream->done].is_over = true;
    self(device).run_all();
  };
  table.stream_native = [](void*, void* stream, void** out) {
    *out = stream;
    return hetcomm_status_t{HETCOMM_OK};
  };
}

}  // namespace hetcomm::test
