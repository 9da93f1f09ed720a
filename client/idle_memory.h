// Memory that stays mapped for the next small allocation, when something else needs it.
#pragma once
#include "client/call.h"

namespace gpupool::client {

// Gives the server what is kept mapped for nobody; false: nothing was. Whoever then asks again gets it.
bool give_back_idle(Session& session, const Device& device);

}  // namespace gpupool::client
