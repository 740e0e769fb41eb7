"""Image captioning in small: encoder and decoder are separate modules under one optimizer,
sequences are packed.
"""

import argparse

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

VOCAB = 7


class Captions(Dataset):
    def __init__(self, n=41, length=5):
        g = torch.Generator().manual_seed(13)
        self.images = torch.randn(n, 8, generator=g)
        self.captions = torch.randint(1, VOCAB, (n, length), generator=g)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.captions[index]


def collate_fn(batch):
    images, captions = zip(*batch)
    return torch.stack(images), pad_sequence(captions, batch_first=True)


class EncoderCNN(nn.Module):
    def __init__(self, embed_size):
        super().__init__()
        self.linear = nn.Linear(8, embed_size)

    def forward(self, images):
        return self.linear(images).tanh()


class DecoderRNN(nn.Module):
    def __init__(self, embed_size, hidden_size):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, embed_size)
        self.rnn = nn.GRU(embed_size, hidden_size, batch_first=True)
        self.linear = nn.Linear(hidden_size, VOCAB)

    def forward(self, features, captions):
        embeddings = torch.cat((features.unsqueeze(1), self.embed(captions)), 1)
        hiddens, _ = self.rnn(embeddings[:, :-1])
        return self.linear(hiddens)


def main(args):
    data_loader = DataLoader(Captions(), args.batch_size, shuffle=True, collate_fn=collate_fn)
    encoder, decoder = EncoderCNN(4), DecoderRNN(4, 6)
    params = list(decoder.parameters()) + list(encoder.linear.parameters())
    optimizer = torch.optim.Adam(params, lr=3e-3)
    criterion = nn.CrossEntropyLoss()
    total_step = len(data_loader)
    for epoch in range(2):
        for i, (images, captions) in enumerate(data_loader):
            outputs = decoder(encoder(images), captions)
            loss = criterion(outputs.reshape(-1, VOCAB), captions.reshape(-1))
            decoder.zero_grad()
            encoder.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 2 == 0:
                print(
                    f"Epoch [{epoch}/2], Step [{i}/{total_step}], Perplexity: {loss.exp().item():5.4f}"
                )
    return {"encoder": encoder, "decoder": decoder, "optimizer": optimizer}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    result = main(parser.parse_args())
