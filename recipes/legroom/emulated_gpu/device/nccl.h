// Communicators.
#pragma once

namespace emulated {

// How many ranks the largest communicator of this process has; 0 if it has none.
int largest_communicator();

}  // namespace emulated
