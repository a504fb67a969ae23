"""Decoder-only transformers: from sequences of categories to outputs for each position."""

from pytagi_ddp import nn
from pytagi_ddp.validate import as_integers


def transformer(
    num_embeddings: int,
    seq_len: int,
    outputs: int,
    embed_dim: int = 32,
    num_heads: int = 4,
    num_kv_heads: int | None = None,
    num_blocks: int = 1,
    hidden: int = 0,
) -> nn.Sequential:
    """Embedding, blocks, norm and an output layer that all positions share; a position sees itself and earlier ones.

    A block is x + attention(norm(x)), with rotary positions, and then, with `hidden` units, x + map(MixtureReLU(map(
    norm(x)))). Norms are `RMSNorm`.

    Args:
        num_embeddings: categories. seq_len: positions.
        outputs: units at each position; for classes with `HRCSoftmax`, its `len`.
        embed_dim, num_heads, num_kv_heads: sizes of attention. num_blocks: number of blocks, one after the other.
        hidden: width of the second part of a block; 0 leaves it out.

    Raises:
        ValueError: sizes that the layers do not accept, or less than one block.
    """
    as_integers("a transformer", 1, num_blocks=num_blocks)
    blocks: list[nn.BaseLayer] = []
    for _ in range(num_blocks):
        attention = nn.MultiheadAttention(embed_dim, num_heads, num_kv_heads)
        blocks.append(nn.ResNetBlock(nn.LayerBlock(nn.RMSNorm(embed_dim), attention)))
        if hidden:
            maps = nn.Linear(embed_dim, hidden), nn.MixtureReLU(), nn.Linear(hidden, embed_dim)
            blocks.append(nn.ResNetBlock(nn.LayerBlock(nn.RMSNorm(embed_dim), *maps)))
    table = nn.Embedding(num_embeddings, embed_dim, seq_len)
    return nn.Sequential(table, *blocks, nn.RMSNorm(embed_dim), nn.Linear(embed_dim, outputs))
