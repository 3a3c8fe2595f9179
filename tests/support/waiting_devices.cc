#include "tests/support/waiting_devices.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include <gtest/gtest.h>

namespace hetcomm::test {
namespace {

// The holds on the devices of one context.
class Holds {
 public:
  void add(void* hold) {
    const std::lock_guard lock(mutex_);
    holds_.insert(hold);
  }
  void remove(void* hold) {
    const std::lock_guard lock(mutex_);
    holds_.erase(hold);
    changed_.notify_all();
  }
  // Waits for the holds that exist now.
  void wait(const char* call) {
    constexpr std::chrono::seconds kMax(15);
    std::unique_lock lock(mutex_);
    const std::set<void*> now = holds_;
    const auto have_ended = [&] {
      for (void* const hold : now) {
        if (holds_.count(hold) != 0) return false;
      }
      return true;
    };
    if (!changed_.wait_for(lock, kMax, have_ended)) {
      ADD_FAILURE() << call << " waits for a stream that is held back, and the hold does not end";
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<void*> holds_;
};

struct Vendor {
  const DeviceTable* real;
  std::shared_ptr<Holds> holds;
};

struct Known {
  std::mutex mutex;
  std::map<void*, Vendor> vendors;  // by device
  std::map<const DeviceTable*, std::unique_ptr<DeviceTable>> tables;
};

Known& known() {
  static auto* const all = new Known;
  return *all;
}

Vendor vendor_of(void* device) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  return all.vendors.at(device);
}

// Waits for the current holds, then returns the real table.
const DeviceTable& after_holds(void* device, const char* call) {
  const Vendor vendor = vendor_of(device);
  vendor.holds->wait(call);
  return *vendor.real;
}

DeviceTable waiting_table(const DeviceTable& real) {
  DeviceTable table = real;
  table.destroy = [](void* device) {
    const Vendor vendor = vendor_of(device);
    {
      const std::lock_guard lock(known().mutex);
      known().vendors.erase(device);
    }
    vendor.real->destroy(device);
  };
  table.allocate = [](void* device, uint64_t size, void** out) {
    return after_holds(device, "allocate").allocate(device, size, out);
  };
  table.free = [](void* device, void* address) {
    after_holds(device, "free").free(device, address);
  };
  table.stream_destroy = [](void* device, void* stream) {
    after_holds(device, "stream_destroy").stream_destroy(device, stream);
  };
  table.event_release = [](void* device, void* event) {
    after_holds(device, "event_release").event_release(device, event);
  };
  if (real.pin_host != nullptr) {
    table.pin_host = [](void* device, void* host, uint64_t size) {
      return after_holds(device, "pin_host").pin_host(device, host, size);
    };
    table.unpin_host = [](void* device, void* host) {
      after_holds(device, "unpin_host").unpin_host(device, host);
    };
  }
  if (real.allocate_host != nullptr) {
    table.allocate_host = [](void* device, uint64_t size, void** out) {
      return after_holds(device, "allocate_host").allocate_host(device, size, out);
    };
    table.free_host = [](void* device, void* host) {
      after_holds(device, "free_host").free_host(device, host);
    };
  }
  if (real.user_stream_hold == nullptr) return table;
  table.user_stream_hold = [](void* device, void* stream, void** out) {
    const Vendor vendor = vendor_of(device);
    const hetcomm_status_t status = vendor.real->user_stream_hold(device, stream, out);
    if (status == HETCOMM_OK) vendor.holds->add(*out);
    return status;
  };
  table.hold_end = [](void* device, void* hold) {
    const Vendor vendor = vendor_of(device);
    vendor.holds->remove(hold);
    vendor.real->hold_end(device, hold);
  };
  return table;
}

}  // namespace

std::vector<Device> waiting(const std::vector<Device>& devices) {
  const auto holds = std::make_shared<Holds>();
  std::vector<Device> all;
  Known& one = known();
  const std::lock_guard lock(one.mutex);
  for (const Device& device : devices) {
    std::unique_ptr<DeviceTable>& table = one.tables[device.table];
    if (table == nullptr) table = std::make_unique<DeviceTable>(waiting_table(*device.table));
    one.vendors[device.instance] = {device.table, holds};
    all.push_back({table.get(), device.instance});
  }
  return all;
}

const DeviceTable& real_table(const Device& device) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  const auto found = all.vendors.find(device.instance);
  return found == all.vendors.end() ? *device.table : *found->second.real;
}

}  // namespace hetcomm::test
