"""What each method of explanation shows, and what it leaves out; prose for people."""

ABOUT = {
    "raw_attention": (
        "Raw attention shows how strongly the part of the network that gives the answer attends to each square, in one "
        "block. What the squares had exchanged before, and what is done with them after, is not in it."
    ),
    "head_view": (
        "The head view (Caron and others, 2021) keeps the fewest squares that hold most of one block's attention and "
        "leaves all others at zero. It shows where the network looks in that block, whatever the class."
    ),
    "rollout": (
        "Rollout (Abnar and Zuidema, 2020) multiplies the attention of all blocks, with the skip connections added, "
        "into one map of where information could have come from. It knows nothing of the class, of the values that "
        "were passed on, or of what was done with them."
    ),
    "cross_attention": (
        "Cross-attention shows, for one written token, how the part of the network that writes shared its attention "
        "among the squares, as the mean over all blocks and heads. It says where it read; what the part that reads had "
        "brought to a square from others before is not in it."
    ),
    "gradient_rollout": (
        "Gradient rollout is rollout in which every block's attention counts as far as the class's score would react "
        "to it. So it can tell classes apart; the parts of the network between two attentions are left out."
    ),
    "attention_grad_cam": (
        "Attention Grad-CAM looks at one block only: the heads to which the class's score reacts most have the most to "
        "say in the map. A head counts as a whole, also where it looks at something else."
    ),
    "generic_attention": (
        "Generic attention (Chefer, Gur and Wolf, 2021) weighs the attention of every block by how much the class's "
        "score would react to it, keeps what raises the score, and adds it up over the blocks. It shows only what "
        "speaks for the class, never what speaks against it, and it is a rule of thumb, not a sum that gives the score."
    ),
    "legrad": (
        "LeGrad (Bousselham and others, 2024) asks every block what the answer would be if it were the last, and how "
        "that answer reacts to the block's attention; the map is the mean over the blocks. Only what raises the score "
        "is kept."
    ),
    "attcat": (
        "AttCAT (Qiang and others, 2022) adds up, over all blocks, how much each token pushes the class's score, as "
        "far as other tokens attend to it. It speaks of tokens inside the network, which hold more than their own "
        "square, so its signs are to be read with care."
    ),
    "tam": (
        "TAM (Yuan and others, 2021) follows the attention back from the last block to the picture, as a walk from "
        "token to token, and weighs where it ends by how the class's score reacts to the last block, averaged on the "
        "way from an empty picture to this one. Only the last block knows the class."
    ),
    "saliency": (
        "Saliency (Simonyan and others, 2013) shows how fast the score would change if the pixels of a square changed "
        "a little. It says where the network is touchy, not what the score is made of: a square that settles the "
        "matter may hardly be felt any more."
    ),
    "input_x_gradient": (
        "Input times gradient (Shrikumar and others, 2016) multiplies each pixel by how fast the score would change "
        "with it. In a Transformer these numbers do not add up to the score, and their signs are often wrong."
    ),
    "smooth_grad": (
        "SmoothGrad (Smilkov and others, 2017) is saliency averaged over copies of the picture with noise on them, so "
        "that one pixel's chance does not show. It shares what saliency cannot say."
    ),
    "integrated_gradients": (
        "Integrated Gradients (Sundararajan and others, 2017) adds up how the score reacts on the way from a plain "
        "picture to this one. Its numbers sum to the difference of the two scores; another plain picture to start "
        "from would give another map."
    ),
    "grad_cam": (
        "Grad-CAM (Selvaraju and others, 2017) weighs the features of the squares in one block by how the score reacts "
        "to them on average over the picture, and keeps what speaks for the class. It was made for another kind of "
        "network; here it depends much on the block that is chosen."
    ),
    "hires_cam": (
        "HiResCAM (Draelos and Carin, 2020) multiplies the features of each square in one block by how the score "
        "reacts to them at that very square. It cannot point where that block had no effect; what happened in the "
        "blocks before is left out."
    ),
    "occlusion": (
        "Occlusion (Zeiler and Fergus, 2014) covers one small window after another with the picture's mean colour (or "
        "another that was asked for) and looks how far the score falls. It asks the network itself, but only about one "
        "window at a time: two places that say the same hide each other, and a covered window is something that the "
        "network has not learnt from."
    ),
    "rise": (
        "RISE (Petsiuk and others, 2018) shows the network many pictures with random parts covered by the picture's "
        "mean colour (or another that was asked for); a square counts as much as the score is better when it can be "
        "seen. The map is noisy, and partly covered pictures are something that the network has not learnt from."
    ),
    "kernel_shap": (
        "KernelSHAP (Lundberg and Lee, 2017) shares the score out among the squares by how much each adds, averaged "
        "over all orders in which they could be uncovered; the picture's mean colour (or another that was asked for) "
        "covers them. The shares always sum up, which by itself does not make them right: they are estimated from a "
        "sample, on covered pictures that the network has not learnt from."
    ),
    "conservative": (
        "Conservative propagation (Ali and others, 2022) holds the attention and the scale of every layer fixed and "
        "shares the score out among the pixels, for it and against it. Together with the shares of positions, prefix "
        "tokens and biases, which no map of the picture can show, the numbers add up to the score exactly. That they "
        "add up does not show that they are right. The makers of another package report a patent on this family of "
        "methods (layer-wise relevance propagation)."
    ),
}
