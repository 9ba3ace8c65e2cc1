// Writes training graphs down operation by operation, from what is published of the networks. The
// numbers are the same on every machine.
#pragma once

#include <string>
#include <vector>

#include "reprise/model/graph.h"

namespace reprise::bench {

// gpt<layers>            decoder of width 256, 4 heads, 4 x 256 tokens, vocabulary 8192 (12 layers);
//                        deeper ones 8 x 512 tokens of width 512
// unet_attention         residual units with group norm, skips, attention at the bottom; 8 x 64 x 64
// unet, segnet, vgg16, mobilenet, resnet50
//                        the families of the Checkmate paper, 16 x 224 x 224
// resnet18, resnet101, vgg16_bn
//                        64 x 64, 32 x 64 x 64 and 16 x 64 x 64 images
const std::vector<std::string>& network_names();

// Makes the graph of one of the names above. gpt takes any number of layers. Throws InputError for
// an unknown name.
Graph make_network(const std::string& name);

}  // namespace reprise::bench
