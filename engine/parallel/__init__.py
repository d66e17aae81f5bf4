"""One model on several devices: layouts, the mesh, and how each network is cut; applied from outside."""
