# Primary CNI of a row, and what runs beside it. The input is the row's CLUSTER_NETWORK.
def primary_cni:
    {
        "cilium-replayed": "cilium",
        "istio-cni-after": "bridge, Istio CNI after linkerd-cni",
        "istio-cni-first": "bridge, Istio CNI first",
        "multus-thick": "bridge, behind Multus' daemon",
        "multus-thin": "ptp, behind Multus' thin plugin"
    }[. // ""] // .;
