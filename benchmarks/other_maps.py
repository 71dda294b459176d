"""Maps of other tools for `vitrail audit --method FOLDER`: `python -m benchmarks.other_maps MODEL PHOTOS OUT`.

For each photograph of a folder captum's integrated gradients (20 steps from black) and pytorch-grad-cam's Grad-CAM (the
norm before the attention of the last block) of the network's own answer, as `OUT/captum` and `OUT/grad_cam`. An image
has the size that the network reads.
"""

import argparse
from pathlib import Path

import numpy as np
from captum.attr import IntegratedGradients
from pytorch_grad_cam import GradCAM
from torch import Tensor

import vitrail
from vitrail.data.images import open_image


def main() -> None:
    """Write an array for each photograph and each tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("photos", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    model = vitrail.load(options.model, assume={"mean": 0.5, "std": 0.5})
    network, prefix, grid = model.network, model.network.config.prefix, model.network.config.grid

    def on_grid(tokens: Tensor) -> Tensor:
        return tokens[:, prefix:].unflatten(1, grid).movedim(3, 1)

    gradients = IntegratedGradients(network)
    for file in sorted(each for each in options.photos.rglob("*") if each.suffix.lower() in (".jpg", ".jpeg", ".png")):
        image = model.tensor([open_image(file)])
        target = int(network(image).argmax())
        with GradCAM(network, [network.blocks[-1].norm1], reshape_transform=on_grid) as cam:
            found = {"grad_cam": cam(image.clone(), None)[0]}
        summed = gradients.attribute(image, image * 0 - 1, target=target, n_steps=20, internal_batch_size=20)
        found["captum"] = summed[0].sum(dim=0).detach().numpy()
        for tool, values in found.items():
            place = options.out / tool / file.relative_to(options.photos).with_name(f"{file.name}.npy")
            place.parent.mkdir(parents=True, exist_ok=True)
            np.save(place, values.astype(np.float32))


if __name__ == "__main__":
    main()
