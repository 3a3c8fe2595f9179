// Who waits for the messages that a collective operation is made of.
#pragma once

namespace hetcomm {
struct Operation;
}

namespace hetcomm::collectives {

class PartOwner {
 public:
  // |part| has ended, well or not; it is given back afterwards. Under the baton.
  virtual void part_done(Operation& part) = 0;

 protected:
  ~PartOwner() = default;
};

}  // namespace hetcomm::collectives
